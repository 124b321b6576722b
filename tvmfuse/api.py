"""The verbs in Python: compile a module, tune it, verify an artifact, or run from options."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

from tvmfuse.config import DEFAULT_TUNE_BUDGET_S, CompileOptions
from tvmfuse.errors import ArtifactError, OptionError, UntraceableError
from tvmfuse.fallback import load
from tvmfuse.fallback.again import verify_again
from tvmfuse.fallback.dynamo import BrokenModel, compile_broken
from tvmfuse.fallback.run import compile_loaded, run
from tvmfuse.frontend.import_model import import_model, loaded_module
from tvmfuse.frontend.models import load_model
from tvmfuse.frontend.torch_export import export_program
from tvmfuse.offline import NotServed
from tvmfuse.precision.stability import stability_of
from tvmfuse.report.progress import Progress
from tvmfuse.run import Clock, rules_of, runnable_target, source_of
from tvmfuse.runtime.write import copy_artifact
from tvmfuse.verify import load_metric
from tvmfuse.verify.bisect import bisect

__all__ = [
    "CompiledModel",
    "bisect_model",
    "compile",
    "run",
    "stability",
    "tune",
    "verify_artifact",
]


class CompiledModel:
    """A compiled module: call it like the module, or save it.

    Attributes
    ----------
    report : dict
        What ``report.json`` would hold; ``{"graphs": [...]}`` with one report a graph where no
        single graph holds the module.
    """

    def __init__(
        self, folder: tempfile.TemporaryDirectory[str], report: dict[str, Any], model: Any
    ) -> None:
        self._folder, self.report, self._model = folder, report, model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on NumPy arrays or torch tensors; see :class:`tvmfuse.runtime.LoadedModel`."""
        return self._model(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(self._model)

    def save(self, directory: str | Path) -> Path:
        """Write the artifact folder.

        Raises
        ------
        ArtifactError
            Something else stands there, or the module is in several graphs with Python between.
        """
        if isinstance(self._model, BrokenModel):
            raise ArtifactError(
                f"the model is in {len(self._model.graphs)} graphs with Python between them, which "
                "no file can hold; compile it where it is served, or replace the control flow "
                "that depends on values"
            )
        return copy_artifact(Path(self._folder.name) / "artifact", Path(directory))


def compile(  # the product's own word for it, as in torch.compile
    module: Any,
    example_inputs: Any = (),
    *,
    kwargs: dict[str, Any] | None = None,
    name: str = "model",
    progress: Progress | None = None,
    **options: Any,
) -> CompiledModel:
    """Compile a ``torch.nn.Module``.

    Parameters
    ----------
    module
        In eval mode.
    example_inputs
        Tuple of the positional arguments; their shapes are those of the compiled model.
        Anything but a tuple or a list is taken as the only argument.
    kwargs
        Keyword arguments by name; the compiled model takes the same keywords.
    name
        For logs and reports.
    progress
        Told how it goes; by default nobody is.
    options
        Fields of :class:`tvmfuse.config.CompileOptions`: ``target``, ``trials``,
        ``time_budget_s``, ``dtype``, ``calibrate``, ``observer``,
        ``threads``, ``log_dir``, ``seed``, ``fallback``.

    Returns
    -------
    CompiledModel
        Callable with the module's own arguments, unless it was built for a GPU; ``.save(dir)``
        writes the artifact.

    Raises
    ------
    TvmfuseError
        As for :func:`run`.
    """
    refused = sorted({"model", "output", "batch", "shape", "weights"} & set(options))
    if refused:
        raise OptionError(
            f"tvmfuse.compile takes no {', '.join(refused)}: the module brings its weights, the "
            "example inputs their shapes, and .save(dir) writes the artifact"
        )
    if not isinstance(example_inputs, (tuple, list)):
        example_inputs = (example_inputs,)
    folder = tempfile.TemporaryDirectory(prefix="tvmfuse-")
    output = Path(folder.name) / "artifact"
    asked = CompileOptions(model=name, output=output, **options)
    silent = progress or Progress(_nowhere())
    clock = Clock(silent)
    hardware = runnable_target(asked)
    loaded = loaded_module(module, tuple(example_inputs), name, kwargs)
    arguments = (loaded, hardware, asked, silent, clock)
    try:
        report = compile_loaded(*arguments, output)
    except UntraceableError as refusal:
        if asked.fallback != "eager":
            raise
        if asked.metric is not None:
            raise OptionError(
                "--metric is taken of a whole model, and this one is compiled in several "
                f"graphs with Python between them: {refusal}"
            ) from refusal
        silent.warn(f"{refusal}\n  compiling the graphs between breaks (--fallback eager)")
        broken = compile_broken(*arguments, Path(folder.name))
        return CompiledModel(folder, {"graphs": broken.graphs}, broken)
    if hardware.gpu is not None:
        return CompiledModel(folder, report, NotServed(hardware))
    return CompiledModel(folder, report, load(output, hardware.cores))


def tune(module: Any, example_inputs: Any = (), **options: Any) -> CompiledModel:
    """Compile with the default tuning budget; takes what :func:`compile` takes."""
    if options.get("trials") is None and options.get("time_budget_s") is None:
        options["time_budget_s"] = DEFAULT_TUNE_BUDGET_S
    return compile(module, example_inputs, **options)


def verify_artifact(
    directory: str | Path,
    progress: Progress | None = None,
    against: CompileOptions | None = None,
    metric: tuple[str | None, str | None] = (None, None),
) -> dict[str, Any]:
    """Verify an artifact again: the model level, the layer level, and the user's metric.

    Parameters
    ----------
    directory
        The artifact.
    progress
        Told how it goes.
    against
        Names the model to compare with, its shapes and weights; None takes the one that the
        artifact's manifest names.
    metric
        ``--metric`` and ``--data``; see `tvmfuse.verify.metric`.

    Raises
    ------
    TvmfuseError
        The artifact or its model cannot be loaded, or they do not belong together.
    """
    progress = progress or Progress(_nowhere())
    measure = load_metric(*metric)
    model = load(Path(directory))
    source = model.manifest.provenance.get("import") if against is None else source_of(against)
    if source is None:
        raise ArtifactError(
            f"{directory} was compiled from a module in memory, so nothing says how to load its "
            "reference again; name the model with --against package.module:callable or FILE.pt2"
        )
    progress.stage("verify")
    quantization = model.manifest.provenance.get("quantization")
    name, report = verify_again(model, source, measure, quantization)
    return {
        "model": name,
        "target": getattr(model.manifest, "target_key", "in parts"),
        "output": str(directory),
        "verify": report.to_json(),
    }


def bisect_model(options: CompileOptions, progress: Progress | None = None) -> dict[str, Any]:
    """Find the pass, rule or algorithm that breaks a model; see `tvmfuse.verify.bisect`.

    Raises
    ------
    TvmfuseError
        The model cannot be loaded, imported or built.
    """
    progress = progress or Progress(_nowhere())
    hardware = runnable_target(options)
    if hardware.gpu is not None:
        raise OptionError(
            f"kernels for {hardware.name} cannot be run here, so no fault in them can be looked "
            "for; --target llvm finds faults of import, fusion and layouts"
        )
    progress.stage("import")
    workload = import_model(**source_of(options))
    progress.stage("bisect")
    found = bisect(workload, hardware, options.seed, progress.note, rules_of(options))
    return {"model": workload.name, "target": hardware.name, "bisect": found.to_json()}


def stability(options: CompileOptions, progress: Progress | None = None) -> dict[str, Any]:
    """Which values of a model leave the range of half precision; see `tvmfuse.precision.stability`.

    Raises
    ------
    TvmfuseError
        The model cannot be loaded or exported, or does not run in float64.
    """
    progress = progress or Progress(_nowhere())
    progress.stage("import")
    loaded = load_model(**source_of(options))
    progress.stage("run in float64")
    program = loaded.program or export_program(loaded.module, loaded.example_inputs)
    return {"model": loaded.name, **stability_of(program, loaded.example_inputs).to_json()}


def _nowhere() -> Any:
    return io.StringIO()
