"""Halves for products, float32 for the rest: what is rounded, where, and what is refused."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from tvmfuse.errors import OptionError
from tvmfuse.fusion.kernels import KernelGraph
from tvmfuse.fusion.planner import make_plan
from tvmfuse.graph import Graph, array_of, dtype_of
from tvmfuse.passes.mixed_precision import MixedPrecision, rounded
from tvmfuse.passes.pipeline import lowering
from tvmfuse.schedules.anchor import Conv2d, Dense, from_text, to_text

HALF = "bfloat16"


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.c = nn.Conv2d(16, 4, 1)

    def forward(self, x):
        y = torch.relu(self.a(x))
        return self.c(torch.cat([y, torch.relu(self.b(y))], 1)) + x[:, :4]


def halved(kit, module, *inputs, dtype=HALF):
    workload = kit.workload(module, *inputs)
    signature = dataclasses.replace(workload.signature, computes=dtype)
    return dataclasses.replace(workload, signature=signature)


def casts(mod):
    return [n for n in Graph(mod).nodes.values() if n.op == "astype"]


def constants(mod):
    found = [o for n in Graph(mod).nodes.values() for o in n.operands]
    return [o for o in found if array_of(o) is not None]


def test_products_read_halves_and_give_float32(kit):
    mod = MixedPrecision(HALF)(kit.imported(Branches(), torch.randn(1, 8, 6, 6)))
    for node in Graph(mod).nodes.values():
        if node.op == "nn.conv2d":
            assert [dtype_of(o) for o in node.operands] == [HALF, HALF]
            assert node.dtype == "float32"
    big = [c for c in constants(mod) if array_of(c).ndim == 4 and array_of(c).size > 16]
    assert {dtype_of(c) for c in big} == {HALF}


def test_a_value_is_rounded_once_and_moves_carry_halves(kit):
    mod = MixedPrecision(HALF)(kit.imported(Branches(), torch.randn(1, 8, 6, 6)))
    narrowing = [n for n in casts(mod) if n.dtype == HALF]
    assert len(narrowing) == 3  # the input and both branches, never the concatenation
    assert len({str(n.operands[0].name) for n in narrowing}) == 3
    (concat,) = [n for n in Graph(mod).nodes.values() if n.op == "concat"]
    assert concat.dtype == HALF


def test_casts_leave_no_kernels_behind(kit):
    x = torch.randn(1, 8, 6, 6)
    wide, _ = lowering(kit.workload(Branches(), x), kit.HARDWARE)
    half, _ = lowering(halved(kit, Branches(), x), kit.HARDWARE)
    plans = [make_plan(w, kit.HARDWARE) for w in (wide, half)]
    assert len(plans[1].groups) == len(plans[0].groups) + 1  # of the input


class Bmm(nn.Module):
    def forward(self, x, y):
        return torch.softmax(x @ y, -1).sum(-1)


def test_islands_compute_in_float32(kit):
    x, y = torch.randn(2, 4, 16), torch.randn(2, 16, 5)
    low, _ = lowering(halved(kit, Bmm(), x, y), kit.HARDWARE)
    graph = KernelGraph(low.module)
    assert {n.dtype for n in graph.nodes.values() if n.op in ("softmax", "sum")} == {"float32"}
    (product,) = [n for n in graph.nodes.values() if n.op == "matmul"]
    assert [dtype_of(o) for o in product.operands] == [HALF, HALF] and product.dtype == "float32"


def test_rotary_angles_stay_float32(kit):
    mod = kit.imported(Bmm(), torch.randn(2, 4, 1), torch.randn(2, 1, 5))
    assert not rounded(Graph(mod))


@pytest.mark.parametrize(
    ("module", "given", "said"),
    [
        (nn.ReLU(), torch.randn(3, 4), "this model has none"),
        (nn.Linear(8, 8).half(), torch.randn(3, 8).half(), "has float16 of its own"),
        (nn.Linear(8, 8).double(), torch.randn(3, 8).double(), "this model has none"),
    ],
    ids=["nothing to cast", "a half already", "float64"],
)
def test_what_is_refused(kit, module, given, said):
    with pytest.raises(OptionError, match=said):
        lowering(halved(kit, module, given), kit.HARDWARE)


def test_weights_beyond_float16_are_refused(kit):
    layer = nn.Linear(8, 8)
    layer.weight.data[0, 0] = 1e5
    with pytest.raises(OptionError, match="reaches 1e\\+05, and the largest float16 is 65504"):
        lowering(halved(kit, layer, torch.randn(3, 8), dtype="float16"), kit.HARDWARE)
    lowering(halved(kit, layer, torch.randn(3, 8)), kit.HARDWARE)


def test_an_anchor_without_a_result_type_has_the_text_it_had():
    dense = Dense((), 2, 8, 8, "float32")
    assert "result" not in to_text(dense) and from_text(to_text(dense)) == dense
    mixed = Conv2d(1, 4, 4, 8, 8, 1, 1, (1, 1), (0,) * 4, (1, 1), 1, HALF, "float32")
    assert from_text(to_text(mixed)) == mixed


def test_rounding_is_to_nearest_even(kit):
    from tvmfuse.passes.mixed_precision import halved as constant

    values = np.array([1 + 2**-8, 1 + 3 * 2**-8], "float32")
    assert constant(values, HALF).value.numpy().astype("float32").tolist() == [1.0, 1.015625]
