"""Groups grow by rules, and say why they stop."""

import pytest
import torch
from torch import nn

from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion import planner
from tvmfuse.fusion.group import Group
from tvmfuse.fusion.grow import MAX_EXPRESSION
from tvmfuse.fusion.plan import Plan
from tvmfuse.fusion.rules.vertical import VERTICAL, VerticalRule
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import lower

HARDWARE = resolve_target("llvm", 2)


class Lambda(nn.Module):
    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def plan_of(function, *inputs, rules=VERTICAL, **parts):
    low = lower(import_module(Lambda(function, **parts).eval(), inputs), HARDWARE)
    return planner.make_plan(low, HARDWARE, rules)


def group_with(plan, op):
    (group,) = [g for g in plan.groups if op in g.ops]
    return group


def reasons(plan, part):
    return [r.reason for r in plan.refused if part in r.rule]


X = torch.randn(1, 8, 6, 6)


def conv(cin=8, cout=8):
    return nn.Conv2d(cin, cout, 3, padding=1)


def test_diamond_joins_as_a_whole():
    plan = plan_of(lambda m, x: (y := m.c(x)) * torch.sigmoid(y) + y, X, c=conv())
    assert len(group_with(plan, "conv2d").ops) == 5
    assert all(g.ops == ("transpose",) for g in plan.groups if "conv2d" not in g.ops)  # layout


def test_diamond_with_a_returned_value_stays_outside():
    def forward(m, x):
        y = m.l(x)
        gate = torch.sigmoid(y)
        return y * gate, gate

    plan = plan_of(forward, torch.randn(6, 8), l=nn.Linear(8, 8))
    assert group_with(plan, "dense").ops == ("dense", "add")
    assert reasons(plan, "dense") == ["the model returns a value that lies between"]


def test_softmax_takes_what_it_alone_reads():
    plan = plan_of(lambda m, x, y: torch.softmax(x * 0.5 + y, -1), X, X)
    (group,) = plan.groups
    assert group.ops == ("multiply", "add", "softmax")


def test_softmax_leaves_what_others_read():
    def forward(m, x, y):
        s = x * 0.5 + y
        return torch.softmax(s, -1), s

    assert group_with(plan_of(forward, X, X), "softmax").ops == ("softmax",)


def test_broadcast_does_not_repeat_an_anchor():
    def forward(m, x, y):
        return x * torch.sigmoid(m.l(y))

    plan = plan_of(forward, torch.randn(32, 8), torch.randn(1, 8), l=nn.Linear(8, 8))
    assert group_with(plan, "dense").ops == ("dense", "add", "sigmoid")
    assert reasons(plan, "dense") == ["multiply would compute 8 values for each of 256"]


def test_a_rule_that_is_switched_off_stops_the_group():
    rules = [r for r in VERTICAL if not (r.anchor == "conv2d" and r.op in ("relu", "*"))]
    plan = plan_of(lambda m, x: torch.relu(m.c(x)), X, c=conv(), rules=rules)
    assert group_with(plan, "conv2d").ops == ("conv2d", "add")
    assert reasons(plan, "relu") == ["no rule lets relu join conv2d"]


def test_expression_is_cut_into_bounded_pieces():
    def forward(m, x):
        for _ in range(12):
            x = x * torch.tanh(x) + x
        return x

    plan = plan_of(forward, X)
    assert 1 < len(plan.groups) < 12  # not one kernel, and not one an operator
    assert any(f"{MAX_EXPRESSION} at most" in r.reason for r in plan.refused)


def test_names_are_equations_and_unique():
    names = [r.name for r in VERTICAL]
    assert len(set(names)) == len(names)
    assert VerticalRule("conv2d", "relu").name == "relu(conv2d(x, w))"
    assert VerticalRule("softmax", "scale", "prologue").name == "softmax(scale(x))"


@pytest.mark.parametrize("groups", [(), (Group(("v1",), ("relu",)), Group(("v1",), ("relu",)))])
def test_a_plan_that_is_no_partition_is_an_error(groups):
    low = lower(import_module(nn.ReLU().eval(), (X,)), HARDWARE)
    graph = planner.KernelGraph(low.module)
    (name,) = graph.kernels
    renamed = tuple(Group((name,), g.ops) for g in groups)
    with pytest.raises(planner.BuildError, match=name):
        planner.check_partition(graph, Plan(renamed))
