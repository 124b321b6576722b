"""Compile with ``--fallback eager``: what is refused runs in PyTorch between compiled parts."""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tvmfuse import __version__
from tvmfuse.config import CompileOptions
from tvmfuse.errors import ArtifactError, ImportModelError, VerificationError
from tvmfuse.fallback.manifest import Part, SegmentedManifest, read_segmented
from tvmfuse.fallback.model import SegmentedModel
from tvmfuse.frontend.import_model import import_module, workload_of
from tvmfuse.frontend.loaded import LoadedReference
from tvmfuse.frontend.models import load_model
from tvmfuse.frontend.segments import Segment, Split, split
from tvmfuse.frontend.torch_export import export_program
from tvmfuse.frontend.trees import forward_parameters
from tvmfuse.hardware import Hardware
from tvmfuse.report.progress import Progress
from tvmfuse.run import REPORT, Clock, Run, runnable_target, source_of
from tvmfuse.runtime.manifest import MANIFEST, FileSeal, sha256_of
from tvmfuse.runtime.write import check_destination, install_artifact
from tvmfuse.verify import Metric, VerifyReport, load_metric, verify
from tvmfuse.workload import Workload

_ROUNDS = 9  # timed calls of every part; the median is reported


def run_with_fallback(options: CompileOptions, progress: Progress) -> dict[str, Any]:
    """Like :func:`tvmfuse.run.run`; a refused model becomes an artifact in parts.

    Raises
    ------
    TvmfuseError
        The model cannot be exported at all, or any stage fails.
    """
    hardware = runnable_target(options)
    assert options.output is not None
    check_destination(options.output)
    clock = Clock(progress)
    source = source_of(options)
    with clock("import"):
        loaded = load_model(**source)
        loaded.provenance["import"] = source
    progress.note(f"weights: {loaded.provenance['weights']}")
    return compile_loaded(loaded, hardware, options, progress, clock, options.output)


def compile_loaded(
    loaded: LoadedReference,
    hardware: Hardware,
    options: CompileOptions,
    progress: Progress,
    clock: Clock,
    output: Path,
) -> dict[str, Any]:
    """Compile a loaded model whole if that is possible, in parts otherwise; returns the report."""
    with clock("import"):
        program = loaded.program or export_program(loaded.module, loaded.example_inputs)
        loaded = loaded._replace(program=program)
        try:
            workload: Workload | None = workload_of(loaded)
        except ImportModelError as refusal:
            progress.warn(f"{refusal}\n  PyTorch runs these operators (--fallback eager)")
            workload = None
            found = split(program, forward_parameters(loaded.module))
    if workload is not None:
        return Run(workload, hardware, options, progress, clock).go(output)
    return _Parts(loaded, found, hardware, options, progress, clock).go(output)


def verify_parts(
    model: SegmentedModel,
    loaded: LoadedReference,
    found: Split,
    seed: int,
    metric: Metric | None = None,
) -> VerifyReport:
    """Compare a model in parts with eager; what the program draws is drawn from one seed."""
    workload = Workload(
        loaded.name, None, found.signature, _Seeded(loaded.module, found.draws),
        loaded.example_inputs, loaded.provenance,
    )  # fmt: skip
    return verify(_seeded(model), workload, seed, metric=metric)


class _Parts:
    """The stages of a model in parts."""

    def __init__(
        self,
        loaded: LoadedReference,
        found: Split,
        hardware: Hardware,
        options: CompileOptions,
        progress: Progress,
        clock: Clock,
    ) -> None:
        self.loaded, self.split = loaded, found
        self.hardware, self.options = hardware, options
        self.progress, self.clock = progress, clock
        self.reports: list[dict[str, Any] | None] = []

    def go(self, output: Path) -> dict[str, Any]:
        """Compile the parts beside ``output``, verify the whole, and move it there."""
        output.parent.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(dir=output.parent, prefix=".tvmfuse-") as scratch:
                staged = Path(scratch) / "artifact"
                staged.mkdir()
                report = self._build(staged)
                report["output"] = str(output)
                (staged / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
                install_artifact(staged, output)
        except OSError as error:
            raise ArtifactError(
                f"cannot write the artifact {output}: {error}; free space, or choose another "
                "--output or TMPDIR; nothing was left behind"
            ) from error
        return report

    def _build(self, staged: Path) -> dict[str, Any]:
        values = dict(zip(self.split.inputs, _flat(self.loaded.example_inputs), strict=True))
        parts = []
        for number, segment in enumerate(self.split.segments):
            inputs = tuple(values[name] for name in segment.inputs)
            parts.append(self._part(number, segment, inputs, staged))
            with torch.no_grad():
                results = segment.module(*_copied(inputs))
            values.update(zip(segment.outputs, results, strict=True))
        manifest = SegmentedManifest(
            self.split.signature, tuple(parts), self.split.inputs, self.split.outputs,
            {"torch": torch.__version__, "tvmfuse": __version__},
            self.loaded.provenance,
        )  # fmt: skip
        text = json.dumps(manifest.to_json(), indent=1, ensure_ascii=False) + "\n"
        (staged / MANIFEST).write_text(text, encoding="utf-8")
        model = SegmentedModel(staged, read_segmented(staged), self.hardware.cores, True)
        with self.clock("verify"):
            verified = self._verified(model)
            times = self._times(model)
        return self._report(verified, times)

    def _part(self, number: int, segment: Segment, inputs: tuple[Any, ...], staged: Path) -> Part:
        """Write one part; a compiled one that fails to import after all runs in PyTorch."""
        if segment.compiled and inputs:
            path = f"part{number}"
            try:
                with self.clock("import"):
                    workload = import_module(segment.module, inputs, f"{self.loaded.name}-{path}")
            except ImportModelError as refusal:
                self.progress.warn(f"part {number} runs in PyTorch as well: {refusal}")
            else:
                options = self._share(segment)
                run = Run(workload, self.hardware, options, self.progress, self.clock, timed=False)
                self.reports.append(run.go(staged / path))
                return Part(path, True, segment.inputs, segment.outputs)
        self.reports.append(None)
        path = f"part{number}.pt2"
        with self.clock("import"):
            _save(segment, inputs, staged / path)
        seal = FileSeal((staged / path).stat().st_size, sha256_of(staged / path))
        return Part(path, False, segment.inputs, segment.outputs, seal)

    def _share(self, segment: Segment) -> CompileOptions:
        """The options with this part's share of the tuning budget, by number of operators."""
        total = sum(s.operators for s in self.split.segments if s.compiled)
        share = segment.operators / total
        trials, seconds = self.options.trials, self.options.time_budget_s
        return dataclasses.replace(
            self.options,
            trials=trials and max(1, round(trials * share)),
            time_budget_s=seconds and seconds * share,
            metric=None,  # of the whole
            data=None,
        )

    def _verified(self, model: SegmentedModel) -> dict[str, Any]:
        """The whole against eager; the compiled parts were verified when they were built."""
        metric = load_metric(self.options.metric, self.options.data)
        report = verify_parts(model, self.loaded, self.split, self.options.seed, metric)
        if not report.passed:
            raise VerificationError(
                f"{self.loaded.name} in {len(self.split.segments)} parts does not agree with eager "
                "PyTorch; no artifact was written:\n  " + "\n  ".join(report.failures())
            )
        return report.to_json()

    def _times(self, model: SegmentedModel) -> dict[str, Any]:
        """Median milliseconds of the whole, of eager and of every part, in turns."""
        examples = self.loaded.example_inputs
        before = torch.get_num_threads()
        torch.set_num_threads(self.hardware.cores)
        spent: dict[str, list[float]] = {}

        def whole(*inputs: Any) -> Any:
            return self.split.signature.call(model, inputs)

        def timed(name: str, call: Callable[..., Any], inputs: Any) -> Any:
            begin = time.perf_counter()
            result = call(*inputs)
            spent.setdefault(name, []).append((time.perf_counter() - begin) * 1e3)
            return result

        try:
            with torch.no_grad():
                for _ in range(_ROUNDS):
                    timed("eager", self.loaded.module, _copied(examples))
                    timed("whole", whole, _copied(examples))
                    values = dict(zip(self.split.inputs, _flat(_copied(examples)), strict=True))
                    for n, (part, run) in enumerate(
                        zip(model.manifest.parts, model.parts, strict=True)
                    ):
                        results = timed(f"part{n}", run, [values[name] for name in part.inputs])
                        values.update(zip(part.outputs, results, strict=True))
        finally:
            torch.set_num_threads(before)
        return {name: statistics.median(times[1:]) for name, times in spent.items()}

    def _report(self, verified: dict[str, Any], times: dict[str, float]) -> dict[str, Any]:
        compiled = [r for r in self.reports if r is not None]
        parts = [
            {
                "part": n,
                "runs_in": "PyTorch" if report is None else "tvmfuse",
                "operators": segment.operators,
                "ms": round(times[f"part{n}"], 4),
                "kernels": report and report["kernels"]["after"],
                "why": list(segment.reasons),
            }
            for n, (segment, report) in enumerate(
                zip(self.split.segments, self.reports, strict=True)
            )
        ]
        return {
            "model": self.loaded.name,
            "target": self.hardware.name,
            "target_key": self.hardware.key,
            "dtype": self.options.dtype,
            "latency_ms": {"median": times["whole"], "kind": "measured"},
            "baseline_ms": {"eager": times["eager"]},
            "parts": parts,
            "eager_ms": sum(p["ms"] for p in parts if p["runs_in"] == "PyTorch"),
            "kernels": {
                key: sum(r["kernels"][key] for r in compiled)
                for key in ("before", "after", "distinct")
            },
            "trials": sum(r["trials"] for r in compiled),
            "wall_s": {k: round(v, 3) for k, v in self.clock.seconds.items()},
            "verify": verified,
            "records": {key: sum(r["records"][key] for r in compiled) for key in ("hit", "missed")},
            "provenance": self.loaded.provenance,
        }


class _Seeded(torch.nn.Module):
    """The reference; every call draws the same random numbers.

    ``draws`` says that it does draw. There is no float64 reference then: PyTorch draws other
    numbers in that type.
    """

    def __init__(self, module: torch.nn.Module, draws: bool) -> None:
        super().__init__()
        self.module, self.draws = module, draws

    def double(self) -> _Seeded:
        """Refuse where the numbers would be others."""
        if self.draws:
            raise TypeError("random numbers of float64 are not those of float32")
        return super().double()

    def forward(self, *inputs: Any) -> Any:
        """Seed and call."""
        torch.manual_seed(0)
        return self.module(*inputs)


def _seeded(model: SegmentedModel) -> Callable[..., Any]:
    """The same for the model in parts: its random operators run in PyTorch, in the same order."""

    def call(*args: Any, **kwargs: Any) -> Any:
        torch.manual_seed(0)
        return model(*args, **kwargs)

    return call


def _save(segment: Segment, inputs: tuple[Any, ...], path: Path) -> None:
    """Write a part for PyTorch; extents that depend on values stay free."""
    try:
        with torch.no_grad():
            program = torch.export.export(
                segment.module, inputs, dynamic_shapes=_free(segment), strict=False
            )
            torch.export.save(program, path)
    except Exception as error:  # PyTorch raises many kinds
        lines = [line for line in str(error).splitlines() if line.strip()] or ["no message"]
        raise ImportModelError(
            "a part for PyTorch cannot be saved: "
            f"{type(error).__name__}: {lines[0]}; it holds {'; '.join(segment.reasons)}"
        ) from error


def _free(segment: Segment) -> Any:
    """``dynamic_shapes``: automatic where the traced value had a symbol, static elsewhere."""
    auto = torch.export.Dim.AUTO
    found = []
    for node in segment.module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            free = {d: auto for d, e in enumerate(value.shape) if not isinstance(e, int)}
            found.append(free or None)
        else:
            found.append(auto if isinstance(value, torch.SymInt) else None)
    return tuple(found)


def _flat(inputs: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(inputs)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _copied(inputs: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda v: v.clone() if isinstance(v, torch.Tensor) else v, tuple(inputs)
    )
