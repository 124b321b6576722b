"""Parts of a concatenation in one kernel: which ones, and why others keep their own."""

import pytest
import torch
from torch import nn

from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.planner import make_plan
from tvmfuse.fusion.rules.together import TOGETHER
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import lower

HARDWARE = resolve_target("llvm", 2)
X, Y = torch.randn(3, 7, 11), torch.randn(3, 5, 11)


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.conv = function, nn.Conv1d(7, 4, 1)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def plan_of(function):
    low = lower(import_module(Net(function).eval(), (X, Y)), HARDWARE)
    return make_plan(low, HARDWARE)


FIRES = {
    "two": (lambda m, x, y: torch.cat([x.sin(), y.tanh() * 2], 1), [2]),
    "three, one operand of two": (lambda m, x, y: torch.cat([x.sin(), y.tanh(), x.exp()], 1), [3]),
    "two concatenations": (
        lambda m, x, y: (torch.cat([x.sin(), y.tanh()], 1), torch.cat([y.exp(), x.cos()], 1)),
        [2, 2],
    ),
    "one within another": (
        lambda m, x, y: torch.cat([torch.cat([x.sin(), y.tanh()], 1), x.exp()], 1), [3]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRES)
def test_it_fires(name):
    function, lengths = FIRES[name]
    plan = plan_of(function)
    assert [len(run.parts) for run in plan.beside] == lengths
    inside = {part for place in plan.in_place for part in place.parts}
    assert all(set(run.parts) <= inside for run in plan.beside)
    assert plan.counts()["diagonal"] >= len(plan.in_place) + len(lengths)


REFUSED = {
    "a convolution": (
        lambda m, x, y: torch.cat([m.conv(x), y.tanh()], 1),
        "a part is made by conv1d, not element by element",
    ),
    "computed from the one in front": (
        lambda m, x, y: torch.cat([p := x.sin(), p.tanh() * 3], 1),
        "a part is computed from the part in front of it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses(name):
    function, reason = REFUSED[name]
    plan = plan_of(function)
    reasons = [r.reason for r in plan.refused if r.rule == TOGETHER]
    assert plan.in_place and not plan.beside
    assert reason in reasons, reasons


def test_a_kernel_in_between_keeps_them_apart():
    """A part that another kernel computes from the first one is not its neighbour."""

    def forward(m, x, y):
        p = y.sin()
        q = p.amax(2, keepdim=True)
        return torch.cat([p, (y - q).tanh()], 1)

    plan = plan_of(forward)
    assert plan.in_place and not plan.beside


def test_no_concatenation_no_run():
    plan = plan_of(lambda m, x, y: (x.sin(), y.tanh()))
    assert not plan.beside and not [r for r in plan.refused if r.rule == TOGETHER]
