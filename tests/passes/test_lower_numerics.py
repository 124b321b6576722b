"""Layer norm keeps its digits at a large offset."""

import numpy as np
import pytest
import torch
from torch import nn
from tvm import relax

from tvmfuse.passes.lower_numerics import legalize_map


def lowered(kit, module, x):
    return relax.transform.LegalizeOps(legalize_map())(kit.imported(module, x))


@pytest.mark.parametrize("shape, normalized", [((3, 37), (37,)), ((2, 5, 4, 6), (4, 6))])
@pytest.mark.parametrize("offset", [0.0, 8e4])
def test_layer_norm_agrees_with_float64(kit, shape, normalized, offset):
    module = nn.LayerNorm(normalized)
    nn.init.normal_(module.weight)
    nn.init.normal_(module.bias)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) + offset
    with torch.no_grad():
        exact = module.double()(x.double()).numpy()
    module.float()
    got = kit.run(lowered(kit, module, x), x.numpy())[0]
    assert np.abs(got - exact).max() < 1e-5 * np.abs(exact).max()


def test_stock_layer_norm_would_lose_them(kit):
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)) + 8e4
    module = nn.LayerNorm(64)
    with torch.no_grad():
        exact = module.double()(x.double()).numpy()
    module.float()
    ours = kit.run(lowered(kit, module, x), x.numpy())[0]
    stock = kit.run(kit.imported(module, x), x.numpy())[0]
    assert 100 * np.abs(ours - exact).max() < np.abs(stock - exact).max()


def test_leading_axes_are_left_to_the_stock_lowering(kit):
    mod = kit.written(
        lambda b, x, g, c: b.emit(relax.op.nn.layer_norm(x, g, c, axes=[0])),
        ((4, 3), "float32"),
        ((4,), "float32"),
        ((4,), "float32"),
    )
    after = relax.transform.LegalizeOps(legalize_map())(mod)
    assert kit.count(after, "nn.layer_norm") == 0  # lowered all the same
    rng = np.random.default_rng(0)
    x, g, c = (rng.standard_normal(s).astype("float32") for s in ((4, 3), (4,), (4,)))
    want = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) * g[:, None] + c[:, None]
    kit.assert_same(kit.run(after, x, g, c), [want.astype("float32")], rtol=1e-4)
