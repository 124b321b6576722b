"""Models that no single graph can hold: TorchDynamo runs their Python, tvmfuse their graphs.

Control flow that depends on values breaks the graph. TorchDynamo hands out the graphs between the
breaks one by one, when they are first run; each is compiled as a model of its own, and what is
between them stays Python. Such a model lives in this process only: there is no file for Python.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tvmfuse.config import CompileOptions
from tvmfuse.errors import ImportModelError, VerificationError
from tvmfuse.fallback import load
from tvmfuse.fallback.run import compile_loaded
from tvmfuse.frontend.keywords import apart
from tvmfuse.frontend.loaded import LoadedReference
from tvmfuse.hardware import Hardware
from tvmfuse.report.progress import Progress
from tvmfuse.run import Clock
from tvmfuse.verify import compare
from tvmfuse.verify.compare import copies


class BrokenModel:
    """A model in several graphs; made by :func:`compile_broken`.

    Attributes
    ----------
    graphs : list of dict
        One report for each graph seen so far: of a compiled one what ``report.json`` holds, of
        one that stays in PyTorch ``{"runs_in": "PyTorch", "why": ...}``.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        name: str,
        hardware: Hardware,
        options: CompileOptions,
        progress: Progress,
        clock: Clock,
        folder: Path,
    ) -> None:
        self.graphs: list[dict[str, Any]] = []
        self._name, self._hardware, self._options = name, hardware, options
        self._progress, self._clock, self._folder = progress, clock, folder
        self._buffers = {id(b) for b in module.buffers()}
        self._run = torch.compile(module, backend=self._compiled, dynamic=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on torch tensors; graphs that are new are compiled first."""
        with torch.no_grad():
            return self._run(*args, **kwargs)

    def __repr__(self) -> str:
        compiled = sum("kernels" in graph for graph in self.graphs)
        return f"BrokenModel({self._name!r}, {len(self.graphs)} graphs, {compiled} compiled)"

    def _compiled(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """TorchDynamo's backend: one graph with the values that it is first run on."""
        number = len(self.graphs)
        weights = {
            i: v for i, v in enumerate(inputs)
            if isinstance(v, torch.nn.Parameter) or id(v) in self._buffers
        }  # fmt: skip
        piece = _Piece(graph, weights).eval()
        given = tuple(
            v.detach() if isinstance(v, torch.Tensor) else v
            for i, v in enumerate(inputs) if i not in weights
        )  # fmt: skip
        output = self._folder / f"graph{number}"
        loaded = LoadedReference(
            piece, given, f"{self._name}-graph{number}", {"weights": "as given"}
        )
        try:
            report = compile_loaded(
                loaded, self._hardware, self._options, self._progress, self._clock, output
            )
        except ImportModelError as refusal:
            self.graphs.append({"runs_in": "PyTorch", "why": str(refusal)})
            self._progress.warn(f"graph {number} runs in PyTorch: {refusal}")
            return graph.forward
        self.graphs.append(report)
        model = load(output, self._hardware.cores)
        return lambda *args: model(*(v for i, v in enumerate(args) if i not in weights))


class _Piece(torch.nn.Module):
    """A graph of TorchDynamo with its weights, which are arguments there, as buffers."""

    def __init__(self, graph: torch.fx.GraphModule, weights: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self.graph = graph
        self.places = sorted(weights)
        for place in self.places:
            self.register_buffer(f"w{place}", weights[place].detach())

    def forward(self, *given: Any) -> Any:
        """The graph on the other arguments."""
        args = list(given)
        for place in self.places:
            args.insert(place, getattr(self, f"w{place}"))
        return self.graph(*args)


def compile_broken(
    loaded: LoadedReference,
    hardware: Hardware,
    options: CompileOptions,
    progress: Progress,
    clock: Clock,
    folder: Path,
) -> BrokenModel:
    """Compile the graphs of a model that ``torch.export`` cannot trace.

    Raises
    ------
    ImportModelError
        No graph of it can be compiled.
    VerificationError
        The outputs on the example differ from eager's.
    """
    module, args, kwargs = apart(loaded.module, loaded.example_inputs)
    model = BrokenModel(module, loaded.name, hardware, options, progress, clock, folder)
    results = []
    for call in (model, module):
        given = copies(args), copies(kwargs)
        results.append(_leaves(call(*given[0], **given[1])))
    if not any("kernels" in graph for graph in model.graphs):
        reasons = "; ".join(dict.fromkeys(str(g.get("why")) for g in model.graphs)) or "no graph"
        raise ImportModelError(f"no graph of the model can be compiled: {reasons}")
    found = compare(results[0], results[1], results[1])
    if not found.passed:
        raise VerificationError(
            f"{loaded.name} in {len(model.graphs)} graphs does not agree with eager PyTorch: "
            f"{found.reason}"
        )
    return model


def _leaves(value: Any) -> list[torch.Tensor]:
    return [
        v.detach() for v in torch.utils._pytree.tree_leaves(value) if isinstance(v, torch.Tensor)
    ]
