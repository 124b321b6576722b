"""The passes in order: the one list to read, and the one place to change their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tvm
from tvm import relax

from tvmfuse.fusion.merging import Merges, find_merges
from tvmfuse.fusion.plan import Plan
from tvmfuse.fusion.rule import Rule
from tvmfuse.fusion.rules import merging_rules
from tvmfuse.graph import Graph
from tvmfuse.hardware import Hardware
from tvmfuse.passes import lower_anchors as anchors
from tvmfuse.passes import lower_comparisons as comparisons
from tvmfuse.passes import lower_moments as moments
from tvmfuse.passes import lower_numerics as numerics
from tvmfuse.passes.cancel_transposes import CancelTransposes
from tvmfuse.passes.canonical_moves import CanonicalMoves
from tvmfuse.passes.fold_batch_norm import FoldBatchNorm
from tvmfuse.passes.fold_constants import FoldConstants
from tvmfuse.passes.fuse_moves import FuseMoves
from tvmfuse.passes.group import group_bindings
from tvmfuse.passes.lower_attention import LowerAttention
from tvmfuse.passes.lower_batch_matmul import LowerBatchMatmul
from tvmfuse.passes.merge import apply_merges
from tvmfuse.passes.name_variables import NameVariables
from tvmfuse.passes.origins import settled
from tvmfuse.passes.simplify import Simplify
from tvmfuse.passes.sink_reshapes import SinkReshapes
from tvmfuse.workload import Workload

LAYOUTS = {"llvm": {"relax.nn.conv2d": ["NHWC", "OHWI"]}}


def lower(workload: Workload, hardware: Hardware, rules: Sequence[Rule] | None = None) -> Workload:
    """:func:`lowering` without the account of its merges."""
    return lowering(workload, hardware, rules)[0]


def lowering(
    workload: Workload, hardware: Hardware, rules: Sequence[Rule] | None = None
) -> tuple[Workload, Merges]:
    """Normalise the graph for the target, merge operators, and lower every one to a kernel.

    Parameters
    ----------
    rules
        Merging rules in order of priority; all of the library when left out.

    Returns
    -------
    Workload
        The same model; ``main`` is a chain of ``call_tir`` with unique variable names, whose
        kernels still have their logical weights and no schedule.
    Merges
        Which operators were merged, and which were not and why.
    """
    origins = dict(workload.origins)
    normal = _run(workload.module, _normalisation(hardware, origins))
    graph = Graph(normal)
    merges = find_merges(graph, merging_rules() if rules is None else rules, hardware)
    merged = apply_merges(normal, graph, merges.chosen, origins)
    module = _run(merged, _kernels(hardware, origins))
    return dataclasses.replace(workload, module=module, origins=settled(module, origins)), merges


def _normalisation(hardware: Hardware, origins: dict[str, str]) -> list[tvm.transform.Pass]:
    return [
        # 1. Graph level: fewer operators, each said in one way
        NameVariables(origins),
        FoldConstants(),
        relax.transform.CanonicalizeBindings(),
        NameVariables(origins),
        FoldBatchNorm(),
        Simplify(),
        relax.transform.DeadCodeElimination(["main"]),
        # 2. Layout of the target; transposed and reshaped constants become constants
        relax.transform.ConvertLayout(LAYOUTS[hardware.kind]),
        CancelTransposes(),
        CanonicalMoves(),
        Simplify(),
        SinkReshapes(),
        CancelTransposes(),
        relax.transform.EliminateCommonSubexpr(),
        FoldConstants(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(["main"]),
        NameVariables(origins),
    ]


def _kernels(hardware: Hardware, origins: dict[str, str]) -> list[tvm.transform.Pass]:
    return [
        # 3. Behind the merging rules: what they emit is normalised too
        CanonicalMoves(),
        SinkReshapes(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(["main"]),
        NameVariables(origins),
        LowerAttention(hardware),
        LowerBatchMatmul(),
        relax.transform.DeadCodeElimination(["main"]),
        # 4. Kernels: anchors keep their record, views stay views
        relax.transform.LegalizeOps(
            {
                **comparisons.legalize_map(),
                **numerics.legalize_map(),
                **moments.legalize_map(),
                **anchors.legalize_map(hardware),
            }
        ),
        relax.transform.RewriteDataflowReshape(),
        NameVariables(origins),
        FuseMoves(),
        relax.transform.EliminateCommonSubexpr(),
        NameVariables(origins),
    ]


def fuse(workload: Workload, plan: Plan) -> Workload:
    """Carry out a plan on a lowered workload: one private function a group."""
    module = group_bindings(workload.module, plan)
    return dataclasses.replace(workload, module=module, in_place=plan.in_place)


def to_executable_form(mod: tvm.IRModule) -> tvm.IRModule:
    """Plan memory and lower Relax to calls of the virtual machine."""
    passes = [
        # 5. Virtual machine: destination passing, one static memory plan, no symbols left
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
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
