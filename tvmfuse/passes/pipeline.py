"""The passes in order: the one list to read, and the one place to change their order."""

from __future__ import annotations

import dataclasses

import tvm
from tvm import relax

from tvmfuse.fusion.plan import Plan
from tvmfuse.hardware import Hardware
from tvmfuse.passes import lower_anchors as anchors
from tvmfuse.passes import lower_comparisons as comparisons
from tvmfuse.passes import lower_numerics as numerics
from tvmfuse.passes.cancel_transposes import CancelTransposes
from tvmfuse.passes.canonical_moves import CanonicalMoves
from tvmfuse.passes.fold_batch_norm import FoldBatchNorm
from tvmfuse.passes.fold_constants import FoldConstants
from tvmfuse.passes.fuse_moves import FuseMoves
from tvmfuse.passes.group import group_bindings
from tvmfuse.passes.name_variables import NameVariables
from tvmfuse.passes.simplify import Simplify
from tvmfuse.passes.sink_reshapes import SinkReshapes
from tvmfuse.workload import Workload

LAYOUTS = {"llvm": {"relax.nn.conv2d": ["NHWC", "OHWI"]}}


def lower(workload: Workload, hardware: Hardware) -> Workload:
    """Normalise the graph for the target and lower every operator to a kernel.

    Returns
    -------
    Workload
        The same model; ``main`` is a chain of ``call_tir`` with unique variable names, whose
        kernels still have their logical weights and no schedule.
    """
    passes = [
        # 1. Graph level: fewer operators, each said in one way
        FoldConstants(),
        relax.transform.CanonicalizeBindings(),
        NameVariables(),
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
        # 3. Kernels: anchors keep their record, views stay views
        relax.transform.LegalizeOps(
            {
                **comparisons.legalize_map(),
                **numerics.legalize_map(),
                **anchors.legalize_map(hardware),
            }
        ),
        relax.transform.RewriteDataflowReshape(),
        NameVariables(),
        FuseMoves(),
        relax.transform.EliminateCommonSubexpr(),
        NameVariables(),
    ]
    return dataclasses.replace(workload, module=_run(workload.module, passes))


def fuse(workload: Workload, plan: Plan) -> Workload:
    """Carry out a plan on a lowered workload: one private function a group."""
    return dataclasses.replace(workload, module=group_bindings(workload.module, plan))


def to_executable_form(mod: tvm.IRModule) -> tvm.IRModule:
    """Plan memory and lower Relax to calls of the virtual machine."""
    passes = [
        # 4. Virtual machine: destination passing, one static memory plan, no symbols left
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
