"""Variance, group and instance norm keep their digits at a large offset, in every layout."""

import numpy as np
import pytest
import torch
from torch import nn
from tvm import relax

from tvmfuse.passes import lower_moments
from tvmfuse.passes.lower_moments import legalize_map

OFFSET = 8e4


class Variance(nn.Module):
    def __init__(self, axes, keepdim):
        super().__init__()
        self.axes, self.keepdim = axes, keepdim

    def forward(self, x):
        return x.var(self.axes, correction=0, keepdim=self.keepdim)


NORMS = {
    "group": nn.GroupNorm(2, 6),
    "group of one channel": nn.GroupNorm(6, 6),
    "all channels": nn.GroupNorm(1, 6),
    "group without weights": nn.GroupNorm(3, 6, affine=False),
    "instance": nn.InstanceNorm2d(6, affine=True),
    "instance without weights": nn.InstanceNorm2d(6),
    "variance of rows": Variance((2, 3), False),
    "variance of channels": Variance((1,), True),
    "variance of batch and pixels": Variance((0, 2, 3), False),
}


def lowered(kit, module, x):
    return relax.transform.LegalizeOps(legalize_map())(kit.imported(module, x))


def drawn(shape=(2, 6, 5, 7), offset=OFFSET):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) + offset


def exact(module, x):
    with torch.no_grad():
        want = module.double()(x.double()).numpy()
    module.float()
    return want


def error(got, want):
    return np.abs(got - want).max() / np.abs(want).max()


@pytest.mark.parametrize("name", NORMS)
def test_large_offset_costs_no_digits(kit, name):
    module, x = NORMS[name].eval(), drawn()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    got = kit.run(lowered(kit, module, x), x.numpy())[0]
    assert error(got, exact(module, x)) < 1e-6


@pytest.mark.parametrize("name", ["group", "instance", "variance of rows"])
def test_stock_lowering_would_lose_them(kit, name):
    module, x = NORMS[name].eval(), drawn()
    stock = kit.run(kit.imported(module, x), x.numpy())[0]
    assert not error(stock, exact(module, x)) < 1e-4  # NaN as well


@pytest.mark.parametrize("blocks", [False, True])
def test_channels_last_and_blocks(kit, blocks, monkeypatch):
    if blocks:  # as long rows are summed
        monkeypatch.setattr(lower_moments, "block_extents", lambda e, _: (e[:-1], e[-1:]))
    attrs = {"num_groups": 2, "channel_axis": 3, "axes": [1, 2]}
    mod = kit.written(
        lambda b, x, g, c: b.emit(relax.op.nn.group_norm(x, g, c, **attrs)),
        ((2, 5, 7, 6), "float32"),
        ((6,), "float32"),
        ((6,), "float32"),
    )
    module, x = nn.GroupNorm(2, 6), drawn()
    nn.init.normal_(module.weight)
    nn.init.normal_(module.bias)
    after = relax.transform.LegalizeOps(legalize_map())(mod)
    weights = [p.detach().numpy() for p in module.parameters()]
    got = kit.run(after, np.ascontiguousarray(x.permute(0, 2, 3, 1).numpy()), *weights)[0]
    assert error(got.transpose(0, 3, 1, 2), exact(module, x)) < 1e-6


def test_constant_maps_give_the_bias(kit):
    """The variance is exactly zero, as a difference of squares would not be."""
    module, x = nn.InstanceNorm2d(6, affine=True).eval(), torch.full((1, 6, 5, 7), 3.7)
    nn.init.normal_(module.bias)
    got = kit.run(lowered(kit, module, x), x.numpy())[0]
    assert (got == module.bias.detach().numpy()[None, :, None, None]).all()


def test_other_types_are_left_to_the_stock_lowering(kit):
    mod = kit.written(lambda b, x: b.emit(relax.op.variance(x, axis=[1])), ((4, 3), "float16"))
    after = relax.transform.LegalizeOps(legalize_map())(mod)
    assert "total" not in str(after) and kit.count(after, "variance") == 0
