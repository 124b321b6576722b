"""The plan is a partition of the kernels; golden structure of three models of the zoo."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from tvmfuse.frontend.import_model import import_model, import_module
from tvmfuse.fusion.group import CATEGORIES, Group, Refusal
from tvmfuse.fusion.plan import Plan
from tvmfuse.fusion.planner import make_plan
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import lower
from tvmfuse.passes.relax_tools import bindings, op_name

GOLDEN = Path(__file__).parent / "golden_plans.json"
HARDWARE = resolve_target("llvm", 2)


def planned(module, *inputs):
    low = lower(import_module(module.eval(), inputs), HARDWARE)
    return low, make_plan(low, HARDWARE)


def kernel_names(low):
    return [
        b.var.name for b in bindings(low.module["main"]) if op_name(b.value) == "relax.call_tir"
    ]


def members(plan):
    return [m for g in plan.groups for m in g.members]


class Block(nn.Module):
    """A residual block whose first convolution is read twice."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))

    def forward(self, x):
        y = self.a(x)
        return torch.relu(self.b(torch.relu(y)) + y), y.mean((2, 3))


def test_plan_is_a_partition_in_order():
    low, plan = planned(Block(), torch.randn(1, 8, 6, 6))
    names = kernel_names(low)
    assert sorted(members(plan)) == sorted(names)
    assert len(set(members(plan))) == len(names)
    position = {n: i for i, n in enumerate(names)}
    for group in plan.groups:
        assert len(group.members) == len(group.ops)
        assert list(group.members) == sorted(group.members, key=position.get)


def test_epilogue_joins_its_anchor():
    module = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
    _, plan = planned(module, torch.randn(1, 8, 6, 6))
    (group,) = [g for g in plan.groups if "conv2d" in g.ops]
    assert group.ops == ("conv2d", "add", "relu")
    assert (group.category, group.rule) == ("vertical", "relu(add(conv2d(x)))")


def test_anchor_does_not_join_an_anchor():
    module = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3))
    _, plan = planned(module, torch.randn(1, 8, 8, 8))
    assert all(g.ops.count("conv2d") <= 1 for g in plan.groups)
    assert sum("conv2d" in g.ops for g in plan.groups) == 2


def test_value_read_twice_ends_its_group():
    _, plan = planned(Block(), torch.randn(1, 8, 6, 6))
    first = next(g for g in plan.groups if "conv2d" in g.ops)
    assert first.ops == ("conv2d", "add")  # not the relu: the sum is read elsewhere as well


def test_group_of_one_has_no_rule():
    _, plan = planned(nn.Softmax(-1), torch.randn(2, 5))
    (group,) = plan.groups
    assert (group.ops, group.category, group.rule) == (("softmax",), "", "")


def test_equal_layers_are_told_apart():
    """FuseOps shares one function among equal groups; the plan names each one's own bindings."""
    module = nn.Sequential(*[m for _ in range(3) for m in (nn.Conv2d(8, 8, 1), nn.ReLU())])
    low, plan = planned(module, torch.randn(1, 8, 4, 4))
    assert len(set(members(plan))) == len(members(plan)) == len(kernel_names(low))
    assert sum(g.ops == ("conv2d", "add", "relu") for g in plan.groups) == 3


def test_one_layer_called_twice():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 1)

        def forward(self, x):
            return self.conv(torch.relu(self.conv(x)))

    low, plan = planned(Shared(), torch.randn(1, 8, 4, 4))
    assert sorted(members(plan)) == sorted(kernel_names(low))


def test_planning_changes_nothing():
    low, _ = planned(Block(), torch.randn(1, 8, 6, 6))
    before = low.module.script()
    first, second = make_plan(low, HARDWARE), make_plan(low, HARDWARE)
    assert first == second and low.module.script() == before


def test_counts():
    groups = (Group(("a",), ("x",)), Group(("b", "c"), ("x", "y"), "vertical", "y(x(x))"))
    plan = Plan(groups, (Refusal("rule", "reason"),))
    assert plan.counts() == {**dict.fromkeys(CATEGORIES, 0), "vertical": 1}


def structure(name, shape):
    """Kernels before and after, and how often each sequence of operators is one group."""
    low = lower(import_model(name, shape=(1, 3, *shape), weights="random"), HARDWARE)
    plan = make_plan(low, HARDWARE)
    assert sorted(members(plan)) == sorted(kernel_names(low))
    groups = Counter(" ".join(g.ops) for g in plan.groups)
    return {
        "before": len(members(plan)),
        "after": len(plan.groups),
        "groups": dict(sorted(groups.items())),
    }


MODELS = {"resnet18": (64, 64), "mobilenet_v2": (64, 64), "squeezenet1_1": (96, 96)}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_golden_structure(name):
    """To renew after a change that is meant: python tests/fusion/test_planner.py."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert structure(name, MODELS[name]) == golden[name]


if __name__ == "__main__":
    found = {name: structure(name, shape) for name, shape in MODELS.items()}
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
