"""Concatenations that take the place of a tensor of which they hold a part, and others."""

import pytest
import torch
from torch import nn

from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.planner import make_plan
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import lower

HARDWARE = resolve_target("llvm", 2)
X = torch.randn(1, 6, 9, 9)
silu = nn.functional.silu


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.one, self.two = nn.Conv2d(6, 5, 1), nn.Conv2d(6, 7, 1)
        self.inner, self.more = nn.Conv2d(5, 5, 3, padding=1), nn.Conv2d(5, 5, 1)
        self.wide = nn.Conv2d(5, 8, 3, padding=1)

    def forward(self, x):
        return self.function(self, x)


def plan_of(function):
    low = lower(import_module(Net(function).eval(), (X,)), HARDWARE)
    return make_plan(low, HARDWARE)


def steps(m, s):
    return silu(m.inner(silu(m.more(s))))


FIRES = {
    "read once": (lambda m, s, t: torch.cat([steps(m, s), t], 1), 1),
    "the first part stays": (lambda m, s, t: torch.cat([t, steps(m, s)], 1), 1),
    "read as a residual as well": (
        lambda m, s, t: torch.cat([steps(m, b := steps(m, s) + s) + b, t], 1), 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRES)
def test_it_fires(name):
    function, slices = FIRES[name]

    def forward(m, x):
        first = name == "the first part stays"
        pair = (m.two, m.one) if first else (m.one, m.two)
        a, b = (silu(conv(x)) for conv in pair)
        s, t = (b, a) if first else (a, b)
        return function(m, s, t).amax((2, 3))

    plan = plan_of(forward)
    (place,) = plan.in_place
    shapes = {g.members[-1]: g.ops for g in plan.groups}
    assert shapes[place.base][0] == "conv2d" and shapes[place.name] == ("concat",)
    assert len(place.staying) == slices
    assert {shapes[name] for name, _ in place.staying} == {("slice",)}
    assert plan.unwritten == {place.name, *(name for name, _ in place.staying)}


REFUSED = {
    "read by the kernel that writes over it": lambda m, s, t: torch.cat([m.inner(s) + s, t], 1),
    "read later": lambda m, s, t: (torch.cat([steps(m, s), t], 1).amax((2, 3)), m.wide(s)),
    "of another width": lambda m, s, t: torch.cat([m.wide(silu(m.more(s))), t], 1),
    "in the other order": lambda m, s, t: torch.cat([t, steps(m, s)], 1),
    "along rows": lambda m, s, t: torch.cat([steps(m, s), t[:, :5]], 2),
    "returned": lambda m, s, t: (torch.cat([steps(m, s), t], 1).amax((2, 3)), t.flatten(1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses(name):
    def forward(m, x):
        return REFUSED[name](m, silu(m.one(x)), silu(m.two(x)))

    plan = plan_of(forward)
    assert not any(place.base for place in plan.in_place)
