"""Verify an artifact later and elsewhere: against the model it was made from, or another one."""

from __future__ import annotations

from typing import Any

from tvmfuse.errors import ArtifactError
from tvmfuse.fallback.model import SegmentedModel
from tvmfuse.fallback.verify_parts import verify_parts
from tvmfuse.frontend.import_model import workload_of
from tvmfuse.frontend.models import load_model
from tvmfuse.frontend.segments import split
from tvmfuse.frontend.torch_export import export_program
from tvmfuse.frontend.trees import forward_parameters
from tvmfuse.precision.quantize import quantised_reference
from tvmfuse.signature import Signature, TensorSpec
from tvmfuse.verify import Metric, VerifyReport, verify


def verify_again(
    model: Any,
    source: dict[str, Any],
    metric: Metric | None = None,
    quantization: dict[str, Any] | None = None,
) -> tuple[str, VerifyReport]:
    """Compare a loaded artifact with eager.

    Parameters
    ----------
    model
        As :func:`tvmfuse.fallback.load` opens it.
    source
        Arguments of :func:`tvmfuse.frontend.models.load_model`.
    metric
        The user's own measure.
    quantization
        How the artifact was quantised (its manifest says so): the model is quantised likewise.

    Returns
    -------
    str, VerifyReport
        The model's name, and what was found.

    Raises
    ------
    ArtifactError
        The model takes or returns other tensors than the artifact.
    TvmfuseError
        The model cannot be loaded or exported.
    """
    loaded = load_model(**source)
    seed = int(source["seed"])
    if quantization is not None:
        program = loaded.program or export_program(loaded.module, loaded.example_inputs)
        asked = (quantization[key] for key in ("calibrate", "observer", "seed"))
        loaded = quantised_reference(loaded._replace(program=program), *asked)
    if isinstance(model, SegmentedModel):
        program = loaded.program or export_program(loaded.module, loaded.example_inputs)
        found = split(program, forward_parameters(loaded.module))
        check_signature(model.manifest.signature, found.signature, loaded.name)
        return loaded.name, verify_parts(model, loaded, found, seed, metric)
    workload = workload_of(loaded, model.manifest.signature.computes)
    check_signature(model.manifest.signature, workload.signature, workload.name)
    return workload.name, verify(model, workload, seed, metric=metric)


def check_signature(have: Signature, want: Signature, name: str) -> None:
    """Raise ArtifactError unless both take and return tensors of the same shapes and types."""
    ours_by_name, theirs_by_name = _by_name(have), _by_name(want)
    if ours_by_name != theirs_by_name:
        raise ArtifactError(
            f"the artifact takes {ours_by_name or 'nothing'} by keyword, the model {name} "
            f"{theirs_by_name or 'nothing'}: name the model with the arguments it was compiled with"
        )
    for what, ours, theirs in (
        ("takes", have.inputs, want.inputs),
        ("returns", have.outputs, want.outputs),
    ):
        if len(ours) != len(theirs) or not all(map(_alike, ours, theirs)):
            raise ArtifactError(
                f"the artifact {what} {_said(ours)}, the model {name} {what} {_said(theirs)}: "
                "give the --batch or --shape that the artifact was compiled with, or its own model"
            )


def _by_name(signature: Signature) -> str:
    names = signature.parameters
    return ", ".join(names[len(names) - signature.by_name :])


def _alike(one: TensorSpec, other: TensorSpec) -> bool:
    """Extents below zero depend on values: they fit all."""
    return (
        one.dtype == other.dtype
        and len(one.shape) == len(other.shape)
        and all(a == b or min(a, b) < 0 for a, b in zip(one.shape, other.shape, strict=True))
    )


def _said(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{s.dtype}{list(s.shape)}" for s in specs) or "nothing"
