"""Concatenations without a copy: where they are, and why others are copied."""

import pytest
import torch
from torch import nn

from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.planner import make_plan
from tvmfuse.fusion.rules.diagonal import CONCAT_IN_PLACE
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import lower

HARDWARE = resolve_target("llvm", 2)
X = torch.randn(1, 6, 9, 9)


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.a, self.b = nn.Conv2d(6, 5, 3, padding=1), nn.Conv2d(6, 7, 1)
        self.c, self.wide = nn.Conv2d(6, 3, 5, padding=2), nn.Conv2d(6, 64, 1)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def plan_of(function, *inputs):
    low = lower(import_module(Net(function).eval(), inputs or (X,)), HARDWARE)
    return make_plan(low, HARDWARE)


def reasons(plan):
    return [r.reason for r in plan.refused if r.rule == CONCAT_IN_PLACE]


def mixed(m, x):
    return torch.cat([torch.relu(m.a(x)), m.b(x), torch.max_pool2d(m.c(x), 3, 1, 1)], 1)


FIRES = {
    "convolutions and a pool along the channels": (mixed, 1, 3),
    "rows": (lambda m, x: torch.cat([m.a(x).relu(), m.a(x + 1).tanh()], 2), 1, 2),
    "one within another": (
        lambda m, x: torch.cat([m.b(x), torch.cat([m.a(x), m.c(x)], 1)], 1).flatten(1), 1, 3
    ),
    "a part with another reader": (
        lambda m, x: torch.cat([p := m.a(x).relu(), torch.max_pool2d(p, 3, 1, 1)], 1), 1, 2
    ),
    "two": (lambda m, x: torch.cat([m.a(y := mixed(m, x)[:, :6]), m.b(y)], 1), 2, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRES)
def test_it_fires(name):
    function, count, parts = FIRES[name]
    plan = plan_of(function)
    assert len(plan.in_place) >= count and plan.counts()["diagonal"] >= len(plan.in_place)
    assert len(plan.in_place[-1].parts) == parts
    owners = {g.members[-1] for g in plan.groups}
    assert {p for place in plan.in_place for p in (place.name, *place.parts)} <= owners


REFUSED = {
    "an input": (lambda m, x: torch.cat([x, m.a(x)], 1), "no kernel writes it"),
    "a constant": (
        lambda m, x: torch.cat([m.a(x), torch.ones(1, 2, 9, 9)], 1), "no kernel writes it"
    ),
    "a part that matmul reads": (
        lambda m, x: torch.cat([p := m.a(x).relu(), (p @ p.mT).tanh()], 1).flatten(1),
        "with strides of its own",
    ),
    "a part that makes it live long": (
        # Three channels more are alive beside the two wide tensors of the pool.
        lambda m, x: (
            torch.cat([p := m.b(x).relu(), m.c(x)], 1).amax((2, 3)),
            torch.max_pool2d(m.wide(x), 3, 1, 1).amax((2, 3)),
            p.amin((2, 3)),
        ),
        "a part is read elsewhere as well: memory grows by 1 KiB",
    ),
    "a part that is returned": (
        lambda m, x: (p := x.sin(), torch.cat([p, m.a(x)], 1)), "a result of the model"
    ),
    "the same part twice": (
        lambda m, x: torch.cat([p := m.a(x).relu(), p], 1), "one tensor twice"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses(name):
    function, reason = REFUSED[name]
    plan = plan_of(function)
    assert not plan.in_place
    assert any(reason in r for r in reasons(plan)), reasons(plan)


def test_attention_is_written_with_strides_of_its_own():
    def forward(m, x):
        q = x.flatten(2)
        one = torch.softmax(q @ q.mT, -1) @ q
        return torch.cat([one, q.tanh()], 1)

    plan = plan_of(forward)
    assert "the kernel of a part is written with strides of its own" in reasons(plan)


def test_one_within_another_along_another_axis():
    """Parts of the inner one are written into the outer one as well."""

    def forward(m, x):
        return torch.cat([m.b(x).repeat(1, 1, 2, 1), torch.cat([m.a(x), m.a(x + 1)], 2)], 1)

    inner, outer = plan_of(forward).in_place
    assert (inner.axis, outer.axis) == (1, 3)  # rows and channels, in the layout of the target
    assert inner.name in outer.parts and not outer.flattened


def test_one_within_another_along_the_same_axis_is_flattened():
    function = FIRES["one within another"][0]
    (place,) = plan_of(function).in_place
    assert len(place.parts) == 3 and len(place.flattened) == 1
    assert place.flattened[0] not in place.parts
