"""The passes in order: the one list to read, and the one place to change their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import tvm
from tvm import relax

from tvmfuse.config import HALVES
from tvmfuse.fusion.merging import Merges, find_merges
from tvmfuse.fusion.plan import Plan
from tvmfuse.fusion.rule import Rule
from tvmfuse.fusion.rules import merging_rules
from tvmfuse.graph import Graph
from tvmfuse.hardware import Hardware
from tvmfuse.passes import lower_anchors as anchors
from tvmfuse.passes import lower_comparisons as comparisons
from tvmfuse.passes import lower_compensated as compensation
from tvmfuse.passes import lower_moments as moments
from tvmfuse.passes import lower_numerics as numerics
from tvmfuse.passes.absorb_casts import AbsorbCasts
from tvmfuse.passes.cancel_transposes import CancelTransposes
from tvmfuse.passes.canonical_moves import CanonicalMoves
from tvmfuse.passes.fold_batch_norm import FoldBatchNorm
from tvmfuse.passes.fold_constants import FoldConstants
from tvmfuse.passes.fuse_moves import FuseMoves
from tvmfuse.passes.group import group_bindings
from tvmfuse.passes.hoist_slices import HoistSlices
from tvmfuse.passes.hoist_splits import HoistSplits
from tvmfuse.passes.image_moves import ImageMoves
from tvmfuse.passes.integer_operators import IntegerOperators
from tvmfuse.passes.invariants import check_fused
from tvmfuse.passes.lower_attention import LowerAttention
from tvmfuse.passes.lower_batch_matmul import LowerBatchMatmul
from tvmfuse.passes.lower_integers import LowerIntegers
from tvmfuse.passes.merge import apply_merges
from tvmfuse.passes.mixed_precision import MixedPrecision, check_castable
from tvmfuse.passes.name_variables import NameVariables
from tvmfuse.passes.nearest_resize import NearestResize
from tvmfuse.passes.origins import settled
from tvmfuse.passes.plan_memory import PlanMemory
from tvmfuse.passes.simplify import Simplify
from tvmfuse.passes.sink_reshapes import SinkReshapes
from tvmfuse.passes.split_sums import SplitSums
from tvmfuse.workload import Workload

_CHANNELS_LAST = {"relax.nn.conv2d": ["NHWC", "OHWI"]}
LAYOUTS = {"llvm": _CHANNELS_LAST, "cuda": _CHANNELS_LAST}

# Without these no kernels come out; others may be left out, to find a wrong one.
REQUIRED = frozenset(
    ("NameVariables", "CanonicalizeBindings", "DeadCodeElimination", "LegalizeOps",
     "RewriteDataflowReshape")
)  # fmt: skip


def lower(workload: Workload, hardware: Hardware, rules: Sequence[Rule] | None = None) -> Workload:
    """:func:`lowering` without the account of its merges."""
    return lowering(workload, hardware, rules)[0]


def lowering(
    workload: Workload,
    hardware: Hardware,
    rules: Sequence[Rule] | None = None,
    leave_out: Collection[str] = (),
    compensated: bool = False,
) -> tuple[Workload, Merges]:
    """Normalise the graph for the target, merge operators, and lower every one to a kernel.

    Parameters
    ----------
    rules
        Merging rules in order of priority; all of the library when left out.
    leave_out
        Passes that are not run, named as :func:`optional_passes` names them.
    compensated
        Whether norms, means, variances and softmax take compensated sums.

    Raises
    ------
    OptionError
        The signature asks for halves, and the model cannot be cast.

    Returns
    -------
    Workload
        The same model; ``main`` is a chain of ``call_tir`` with unique variable names, whose
        kernels still have their logical weights and no schedule.
    Merges
        Which operators were merged, and which were not and why.
    """
    origins = dict(workload.origins)
    before = _normalisation(hardware, origins)
    behind = _kernels(hardware, origins, compensated, workload.signature.computes)
    kept = [p for label, p in _labelled([*before, *behind]) if label not in leave_out]
    first = sum(label not in leave_out for label, _ in _labelled(before))
    normal = _run(workload.module, kept[:first])
    graph = Graph(normal)
    if workload.signature.computes in HALVES:
        check_castable(graph, workload.signature.computes)
    merges = find_merges(graph, merging_rules() if rules is None else rules, hardware)
    merged = apply_merges(normal, graph, merges.chosen, origins)
    module = _run(merged, kept[first:])
    return dataclasses.replace(workload, module=module, origins=settled(module, origins)), merges


def optional_passes(hardware: Hardware) -> list[str]:
    """Labels of the passes that :func:`lowering` can leave out, in order: ``"5 FoldBatchNorm"``."""
    every = [*_normalisation(hardware, {}), *_kernels(hardware, {})]
    return [label for label, p in _labelled(every) if p.info.name not in REQUIRED]


def _labelled(passes: list[tvm.transform.Pass]) -> list[tuple[str, tvm.transform.Pass]]:
    return [(f"{number} {p.info.name}", p) for number, p in enumerate(passes, start=1)]


def _normalisation(hardware: Hardware, origins: dict[str, str]) -> list[tvm.transform.Pass]:
    return [
        # 1. Graph level: fewer operators, each said in one way
        NameVariables(origins),
        FoldConstants(),
        relax.transform.CanonicalizeBindings(),
        NameVariables(origins),
        FoldBatchNorm(),
        Simplify(),
        NearestResize(),
        IntegerOperators(hardware),
        relax.transform.DeadCodeElimination(["main"]),
        # 2. Layout of the target; transposed and reshaped constants become constants
        relax.transform.ConvertLayout(LAYOUTS[hardware.kind]),
        HoistSplits(),
        CancelTransposes(),
        CanonicalMoves(),
        Simplify(),
        relax.transform.DeadCodeElimination(["main"]),
        HoistSlices(),
        SinkReshapes(),
        CancelTransposes(),
        relax.transform.EliminateCommonSubexpr(),
        FoldConstants(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(["main"]),
        NameVariables(origins),
    ]


def _kernels(
    hardware: Hardware, origins: dict[str, str], compensated: bool = False, dtype: str = ""
) -> list[tvm.transform.Pass]:
    mixed = dtype in HALVES
    return [
        # 3. Behind the merging rules: what they emit is normalised too
        *([] if compensated else [SplitSums()]),
        CanonicalMoves(),
        SinkReshapes(),
        ImageMoves(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(["main"]),
        NameVariables(origins),
        *([MixedPrecision(dtype), NameVariables(origins)] if mixed else []),
        LowerAttention(hardware),
        LowerBatchMatmul(),
        LowerIntegers(hardware),
        relax.transform.DeadCodeElimination(["main"]),
        # 4. Kernels: anchors keep their record, views stay views
        relax.transform.LegalizeOps(
            {
                **comparisons.legalize_map(),
                **numerics.legalize_map(),
                **moments.legalize_map(),
                **(compensation.legalize_map() if compensated else {}),
                **anchors.legalize_map(hardware),
            }
        ),
        relax.transform.RewriteDataflowReshape(),
        NameVariables(origins),
        *([AbsorbCasts(), NameVariables(origins)] if mixed else []),
        FuseMoves(),
        relax.transform.EliminateCommonSubexpr(),
        NameVariables(origins),
    ]


def fuse(workload: Workload, plan: Plan) -> Workload:
    """Carry out a plan on a lowered workload: one private function a group.

    Raises
    ------
    BuildError
        The result does not hold every operator in exactly one group: a fault, never silent.
    """
    module = group_bindings(workload.module, plan)
    check_fused(workload.module, module, plan)
    return dataclasses.replace(
        workload,
        module=module,
        in_place=plan.in_place,
        beside=plan.beside,
        overwritten=plan.overwritten,
    )


def to_executable_form(mod: tvm.IRModule) -> tvm.IRModule:
    """Plan memory and lower Relax to calls of the virtual machine."""
    passes = [
        # 5. Virtual machine: destination passing, one static memory plan, no symbols left
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        PlanMemory(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]
    return _run(mod, passes)


def _run(mod: tvm.IRModule, passes: list[tvm.transform.Pass]) -> tvm.IRModule:
    with tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(mod)
