"""Workload: an imported model, before and after normalisation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvmfuse.signature import IndexBound, Signature


@dataclass(frozen=True)
class State:
    """A buffer that the model changes while it runs.

    Parameters
    ----------
    name
        Its path in the module, e.g. ``"layers.0.cache"``.
    value
        What it held at import, as a torch tensor of its own.
    """

    name: str
    value: Any


@dataclass(frozen=True)
class Workload:
    """A model as a Relax module with its signature.

    Parameters
    ----------
    name
        Short name for folders and reports, e.g. ``"resnet50"``.
    module
        ``tvm.IRModule`` with one function ``main``; parameters are constants in it, inputs
        are its arguments in the flat order of ``signature.inputs``, and it returns a tuple
        in the flat order of ``signature.outputs``.
    signature
        Inputs, outputs and their trees.
    reference
        The ``torch.nn.Module`` the answer is checked against.
    example_inputs
        Positional arguments of the reference, as torch tensors.
    provenance
        Where model and weights come from, as plain data for the manifest.
    program
        The functional ``torch.export.ExportedProgram`` that ``module`` was translated from; None
        where there is none (ONNX).
    origins
        Variable of ``main`` to the node of ``program`` that has the same value up to layout;
        variables whose value no node has are not in it.
    states
        Buffers that the model changes. ``main`` takes them before its other arguments and returns
        their new values before its other results, neither of which ``signature`` knows.
    in_place
        Concatenations without a kernel (`tvmfuse.fusion.group.InPlace`), once it is fused.
    beside
        Parts that one kernel writes (`tvmfuse.fusion.group.Beside`), once it is fused.
    overwritten
        Groups that write over an operand (`tvmfuse.fusion.group.Overwritten`), once it is fused.
    bounds
        What arguments that are indices must satisfy.
    checks
        ``main`` returns an int32 for each, between states and results: this error, if it is not 0.
    """

    name: str
    module: Any
    signature: Signature
    reference: Any
    example_inputs: tuple[Any, ...]
    provenance: dict[str, Any] = field(default_factory=dict)
    program: Any = None
    origins: dict[str, str] = field(default_factory=dict)
    states: tuple[State, ...] = ()
    in_place: tuple[Any, ...] = ()
    beside: tuple[Any, ...] = ()
    overwritten: tuple[Any, ...] = ()
    bounds: tuple[IndexBound, ...] = ()
    checks: tuple[str, ...] = ()
