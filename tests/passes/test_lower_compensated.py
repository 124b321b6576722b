"""Compensated sums keep the digits that a large offset, an outlier or a long row costs."""

import numpy as np
import pytest
import torch
from torch import nn
from tvm import relax

from tvmfuse.passes import lower_compensated, lower_moments, lower_numerics

PLAIN = {**lower_numerics.legalize_map(), **lower_moments.legalize_map()}
COMPENSATED = {**PLAIN, **lower_compensated.legalize_map()}


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def drawn(*shape, offset=0.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) + offset


def error(kit, module, x, table):
    """Largest error against float64, relative to the largest magnitude."""
    lowered = relax.transform.LegalizeOps(table)(kit.imported(module, x))
    with torch.no_grad():
        exact = module.double()(x.double()).numpy()
    module.float()
    return np.abs(kit.run(lowered, x.numpy())[0] - exact).max() / np.abs(exact).max()


def test_outlier_in_front(kit):
    """The plain lowering shifts a row by its first element."""
    x = drawn(4, 4096) * 10
    x[:, 0] = 8e4
    compensated = error(kit, nn.LayerNorm(4096), x, COMPENSATED)
    assert compensated <= 1e-6 and 3 * compensated < error(kit, nn.LayerNorm(4096), x, PLAIN)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.LayerNorm(64), (3, 64)),
        (nn.LayerNorm((4, 300)), (2, 4, 300)),
        (nn.GroupNorm(2, 6), (2, 6, 5, 7)),
        (nn.InstanceNorm2d(3, affine=True), (2, 3, 30, 31)),
        (Function(lambda x: x.mean(-1)), (3, 1001)),
        (Function(lambda x: x.mean((0, 2), keepdim=True)), (8, 3, 90)),
        (Function(lambda x: x.var((1,))), (5, 700)),
        (Function(lambda x: x.var()), (5, 7)),
    ],
)
@pytest.mark.parametrize("offset", [0.0, 8e4])
def test_all_are_right_to_a_millionth(kit, module, shape, offset):
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    assert error(kit, module, drawn(*shape, offset=offset), COMPENSATED) <= 1e-6


@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax(kit, axis):
    module = Function(lambda x: x.softmax(axis))
    assert error(kit, module, drawn(2, 1025, 3), COMPENSATED) <= 1e-6


def test_long_row_of_one_sign(kit):
    x = drawn(1, 1 << 18).abs()
    module = Function(lambda x: x.mean(-1))
    assert error(kit, module, x, COMPENSATED) <= 1e-6 < error(kit, module, x, {})


def test_stock_loses_a_thousandth_that_compensation_keeps(kit):
    x = drawn(4, 4096, offset=8e4)
    stock = error(kit, nn.LayerNorm(4096), x, {})
    assert stock > 1e-3 and error(kit, nn.LayerNorm(4096), x, COMPENSATED) <= 1e-6
