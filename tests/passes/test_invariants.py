"""Behind the fusing pass: planted violations are caught and named."""

import pytest
import torch
from torch import nn
from tvm import relax

from tvmfuse.errors import BuildError
from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.plan import Group, Plan
from tvmfuse.fusion.planner import make_plan
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.group import group_bindings
from tvmfuse.passes.invariants import check_fused
from tvmfuse.passes.pipeline import fuse, lower

HARDWARE = resolve_target("llvm", 1)


@pytest.fixture(scope="module")
def fused():
    """A lowered module, the same fused to two groups of three, and the plan."""
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh()).eval()
    low = lower(import_module(module, (torch.randn(2, 8),)), HARDWARE)
    plan = make_plan(low, HARDWARE)
    assert [len(g.members) for g in plan.groups] == [3, 3]
    return low.module, fuse(low, plan).module, plan


def with_main(mod, lines, result):
    """The module with another body of ``main``."""
    main, changed = mod["main"], type(mod)(dict(mod.functions_items()))
    body = relax.SeqExpr([relax.DataflowBlock(lines)], result)
    gv = next(g for g in changed.get_global_vars() if g.name_hint == "main")
    changed[gv] = relax.Function(main.params, body, main.ret_ty, is_pure=True)
    return changed


def test_a_sound_module_passes(fused):
    check_fused(*fused)


def test_any_partition_is_sound(fused):
    before, _, plan = fused
    alone = Plan(tuple(Group((m,), ()) for g in plan.groups for m in g.members))
    check_fused(before, group_bindings(before, alone), alone)


def test_a_group_that_holds_other_operators(fused):
    before, after, plan = fused
    first, second = plan.groups
    less = Plan((Group(first.members[1:], ()), second))
    with pytest.raises(BuildError, match=r"holds (.*), (.*), (.*) instead of \2, \3"):
        check_fused(before, after, less)
    swapped = Plan((Group((first.members[1], first.members[0], first.members[2]), ()), second))
    with pytest.raises(BuildError, match="instead of"):
        check_fused(before, after, swapped)


def test_a_group_that_was_lost(fused):
    before, after, plan = fused
    body = after["main"].body
    lost = plan.groups[1].members[-1]
    kept = [b for b in body.blocks[0].bindings if b.var.name != lost]
    short = with_main(after, kept[:1], kept[0].var)
    with pytest.raises(BuildError, match=f"the group of '{lost}' is called 0 times, not once"):
        check_fused(before, short, plan)


def test_a_group_that_is_called_twice(fused):
    before, after, plan = fused
    lines = list(after["main"].body.blocks[0].bindings)
    again = relax.DataflowVar(lines[0].var.name, lines[0].var.ty)
    twice = with_main(
        after, [relax.VarBinding(again, lines[0].value), *lines], after["main"].body.body
    )
    name = lines[0].var.name
    with pytest.raises(BuildError, match=f"the group of '{name}' is called 2 times, not once"):
        check_fused(before, twice, plan)


def test_a_group_that_the_plan_does_not_have(fused):
    before, after, plan = fused
    name = plan.groups[0].members[-1]
    with pytest.raises(BuildError, match=f"gives out '{name}', which the plan does not name"):
        check_fused(before, after, Plan(plan.groups[1:]))


def test_a_kernel_that_stands_outside_of_its_group(fused):
    before, _, plan = fused
    with pytest.raises(BuildError, match="stands outside of its group"):
        check_fused(before, before, plan)


def test_a_value_that_is_read_from_inside_a_group(fused):
    before, after, plan = fused
    inner = relax.DataflowVar(plan.groups[0].members[0], relax.TensorType((2, 8), "float32"))
    lines = list(after["main"].body.blocks[0].bindings)
    stolen = relax.VarBinding(lines[-1].var, inner)
    broken = with_main(after, [*lines[:-1], stolen], after["main"].body.body)
    with pytest.raises(BuildError, match=f"reads '{inner.name}', which no group gives out"):
        check_fused(before, broken, plan)
