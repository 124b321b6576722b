"""One run of a model: whole where that is possible, in parts otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmfuse.config import OBSERVERS, CompileOptions
from tvmfuse.errors import ImportModelError, OptionError
from tvmfuse.fallback.build_parts import BuildParts
from tvmfuse.frontend.branches import chooses
from tvmfuse.frontend.import_model import workload_of
from tvmfuse.frontend.loaded import LoadedReference
from tvmfuse.frontend.models import load_model
from tvmfuse.frontend.segments import Split, split
from tvmfuse.frontend.torch_export import export_program
from tvmfuse.frontend.trees import forward_parameters
from tvmfuse.hardware import Hardware
from tvmfuse.precision.quantize import RANDOM, quantised_reference
from tvmfuse.report.progress import Progress
from tvmfuse.run import Clock, Run, rules_of, runnable_target, source_of
from tvmfuse.runtime.write import check_destination
from tvmfuse.signature import OWN_TYPES
from tvmfuse.workload import Workload


def run(options: CompileOptions, progress: Progress) -> dict[str, Any]:
    """Import, fuse, tune, build, verify and write one model.

    Parameters
    ----------
    options
        What was asked for.
    progress
        Is told the stages, the notes and how tuning goes.

    Returns
    -------
    dict
        The content of ``report.json``.

    Raises
    ------
    TvmfuseError
        Any stage fails. No artifact is left then, and an older one at the same place stays.
    """
    hardware = runnable_target(options)
    rules_of(options)  # refuses unknown names before the model is loaded
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
    """Compile a loaded model; returns the report.

    A model that chooses between branches is compiled in parts, and so is with ``--fallback eager``
    one that is refused, of which PyTorch then runs some.
    """
    with clock("import"):
        program = loaded.program or export_program(loaded.module, loaded.example_inputs)
        loaded = loaded._replace(program=program)
        if options.dtype == "int8":
            loaded = _quantised(loaded, options, progress)
        found = _whole_or_parts(loaded, options, progress)
    if isinstance(found, Workload):
        return Run(found, hardware, options, progress, clock).go(output)
    return BuildParts(loaded, found, hardware, options, progress, clock).go(output)


def _quantised(
    loaded: LoadedReference, options: CompileOptions, progress: Progress
) -> LoadedReference:
    """The model in int8, which is the reference from here on; says what it rests on."""
    observer = options.observer or OBSERVERS[0]
    loaded = quantised_reference(loaded, options.calibrate, observer, options.seed)
    account = loaded.provenance["quantization"]
    if options.calibrate == RANDOM:
        progress.warn(
            "ranges come from random numbers (--calibrate random): they show how fast the model "
            "is, not how good"
        )
    for layer, why in account["kept_in_float32"].items():
        progress.note(f"{layer} stays in float32: {why}")
    error = account["error_against_float32"]
    progress.note(
        f"{account['layers']} layers are quantised; root mean square error against float32 on the "
        f"example: {error['rms_rel_err']:.2%}"
    )
    return loaded


def _whole_or_parts(
    loaded: LoadedReference, options: CompileOptions, progress: Progress
) -> Workload | Split:
    fallback = options.fallback == "eager"
    if not chooses(loaded.program):
        try:
            return workload_of(loaded, options.computes)
        except ImportModelError as refusal:
            if not fallback:
                raise
            progress.warn(f"{refusal}\n  PyTorch runs these operators (--fallback eager)")
    elif options.computes != OWN_TYPES:
        raise OptionError(
            f"{loaded.name} chooses between branches and is compiled in parts, which --dtype "
            f"{options.dtype} does not cast in this release; leave --dtype out"
        )
    return split(loaded.program, forward_parameters(loaded.module), fallback)
