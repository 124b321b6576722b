"""Merging rules: where they apply, what they leave alone and why, and that the numbers stay."""

import numpy as np
import pytest
import torch
import tvm
from torch import nn

from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.rules import RULES
from tvmfuse.graph import Graph
from tvmfuse.hardware import resolve_target
from tvmfuse.passes import pipeline

HARDWARE = resolve_target("llvm", 2)
DENSE = {rule.name for rule in RULES["horizontal"] if rule.root == ("matmul",)}
CONV = {rule.name for rule in RULES["horizontal"] if rule.root == ("nn.conv2d",)}


class Lambda(nn.Module):
    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def merging(function, *inputs, **parts):
    """Merges of the module, and the lowered module without and with them."""
    workload = import_module(Lambda(function, **parts).eval(), inputs)
    before, _ = pipeline.lowering(workload, HARDWARE, rules=())
    after, merges = pipeline.lowering(workload, HARDWARE)
    return merges, before, after


def fired(merges, rules=()):
    """Outputs of each merge; all are by these rules."""
    assert all(m.rule.name in rules for m in merges.chosen)
    return [len(m.match.outputs) for m in merges.chosen]


def nearest(merges, rules):
    return {merges.nearest[name].reason for name in rules if name in merges.nearest}


def run(low, *inputs):
    target = tvm.target.Target(HARDWARE.target_json)
    machine = tvm.relax.VirtualMachine(tvm.compile(low.module, target), tvm.cpu())
    out = machine["main"](*[tvm.runtime.tensor(i.numpy()) for i in inputs])
    return [o.numpy() for o in out]


def count(low, op):
    return sum(n.op == op for n in Graph(low.module).nodes.values())


X = torch.randn(5, 12)
IMAGE = torch.randn(1, 8, 6, 6)


def same(before, after, *inputs):
    for one, other in zip(run(before, *inputs), run(after, *inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def linears(*widths, bias=True):
    return {f"l{i}": nn.Linear(12, w, bias=bias) for i, w in enumerate(widths)}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [(8, 8), (8, 24), (16, 16, 16)])
def test_projections_of_one_input_are_one_product(widths, bias):
    def forward(m, x):
        parts = [torch.relu(getattr(m, f"l{i}")(x)) for i in range(len(widths))]
        return sum(p[:, :8] * 2 for p in parts)

    merges, before, after = merging(forward, X, **linears(*widths, bias=bias))
    assert fired(merges, DENSE) == [len(widths)]
    assert (count(before, "dense"), count(after, "dense")) == (len(widths), 1)
    same(before, after, X)


def test_gate_and_up():
    def forward(m, x):
        return torch.nn.functional.silu(m.l0(x)) * m.l1(x)

    merges, before, after = merging(forward, X, **linears(16, 16, bias=False))
    assert fired(merges, DENSE) == [2]
    same(before, after, X)


def test_convolutions_of_one_input():
    def forward(m, x):
        return m.b2(torch.relu(m.a1(x))) + m.c2(torch.relu(m.a2(x)))

    def conv(k):
        return nn.Conv2d(8, 8, k, padding=k // 2)

    parts = {"a1": conv(1), "a2": conv(1), "b2": conv(3), "c2": conv(3)}
    merges, before, after = merging(forward, IMAGE, **parts)
    assert fired(merges, CONV) == [2]
    assert count(after, "conv2d") == count(before, "conv2d") - 1
    same(before, after, IMAGE)


REFUSED = {
    "another input": (lambda m, x: m.l0(x) * m.l1(torch.tanh(x)), "no other matmul of this form"),
    "the model returns a part": (lambda m, x: (m.l0(x), m.l1(x)), "the model returns its part"),
    "a part would be copied": (
        lambda m, x: torch.cumsum(m.l0(x), 0) * torch.cumsum(m.l1(x), 0),
        "cumsum would have its part copied",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses(name):
    function, reason = REFUSED[name]
    merges, before, after = merging(function, X, **linears(8, 8))
    assert fired(merges) == []
    assert any(reason in said for said in nearest(merges, DENSE))
    assert count(after, "dense") == count(before, "dense")


def test_tails_that_differ_stay_behind_the_slices():
    def forward(m, x):
        return torch.relu(m.l0(x)) * torch.sigmoid(m.l1(x))

    merges, before, after = merging(forward, X, **linears(8, 8))
    assert fired(merges, DENSE) == [2]
    same(before, after, X)


def test_convolutions_whose_parts_would_be_stored_stay():
    def forward(m, x):
        return torch.relu(m.b(x) + m.c(torch.relu(m.a(x))))  # a residual with a projection

    parts = {k: nn.Conv2d(8, 8, 1) for k in "abc"}
    merges, before, after = merging(forward, IMAGE, **parts)
    assert fired(merges) == [] and count(before, "conv2d") == count(after, "conv2d")
    assert nearest(merges, CONV) == {"add would have its part copied"}


def test_grouped_convolutions_stay():
    def forward(m, x):
        return m.c(m.a(x)) + m.d(m.b(x))

    parts = {k: nn.Conv2d(8, 8, 3, groups=2) for k in "ab"}
    parts |= {k: nn.Conv2d(8, 8, 1) for k in "cd"}
    merges, _, _ = merging(forward, IMAGE, **parts)
    assert fired(merges) == []
    assert "grouped convolutions" in merges.refused[0].reason
