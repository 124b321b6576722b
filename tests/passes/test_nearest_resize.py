"""Gathers that repeat rows and columns become resizing; all others stay gathers."""

import numpy as np
import pytest
import torch
from torch import nn

import tvmfuse
from tvmfuse.passes.nearest_resize import NearestResize, repeats


class Up(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def up(**how):
    return lambda x: nn.functional.interpolate(x, mode="nearest", **how)


FIRES = {
    "twice": (up(scale_factor=2), (2, 3, 5, 7)),
    "three and seven times": (up(size=(33, 35)), (1, 5, 11, 5)),
    "one column": (up(size=(4, 6)), (1, 1, 4, 1)),
    "columns alone": (up(size=(13, 91)), (1, 2, 13, 13)),
    "many rows": (up(size=(3 * 641, 2)), (1, 1, 641, 2)),
}


@pytest.mark.parametrize("name", FIRES)
def test_it_fires(kit, name):
    function, shape = FIRES[name]
    x = torch.randn(shape)
    mod = kit.imported(Up(function), x)
    after = NearestResize()(mod)
    assert (kit.count(after, "image.resize2d"), kit.count(after, "index_tensor")) == (1, 0)
    np.testing.assert_array_equal(kit.run(after, x.numpy())[0], function(x).numpy())


STAYS = {
    "a part of a row": (up(size=(7, 9)), (1, 3, 5, 7)),
    "smaller": (up(size=(5, 7)), (1, 3, 10, 14)),
    "backwards": (lambda x: x[:, :, [4, 3, 2, 1, 0]], (1, 3, 5, 7)),
    "channels": (lambda x: x[:, [0, 0, 1, 1]], (1, 2, 5, 7)),
    "three axes": (up(scale_factor=2), (1, 3, 5)),
}


@pytest.mark.parametrize("name", STAYS)
def test_it_refuses(kit, name):
    function, shape = STAYS[name]
    x = torch.randn(shape)
    after = NearestResize()(kit.imported(Up(function), x))
    assert kit.count(after, "image.resize2d") == 0
    np.testing.assert_array_equal(kit.run(after, x.numpy())[0], function(x).numpy())


ROW, COLUMN = np.arange(2).reshape(2, 1), np.arange(3)


@pytest.mark.parametrize(
    ("indices", "want"),
    [([ROW, COLUMN], (1, 1)), ([ROW.repeat(3, 0), COLUMN.repeat(2)], (3, 2)),
     ([ROW, np.array([0, 1, 2, 0, 1, 2])], None), ([COLUMN[:2], COLUMN], None),
     ([ROW, None], None), ([ROW], None), ([ROW, COLUMN[:2]], None),
     ([ROW.reshape(1, 2, 1), COLUMN], None)],
)  # fmt: skip
def test_repeats(indices, want):
    assert repeats((2, 3), indices) == want


def test_no_layout_changes_around_it():
    """Between two convolutions it costs one kernel, or none, and no transpose."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 5, 1), nn.Upsample(scale_factor=2), nn.Conv2d(5, 7, 3)).eval()
    x = torch.randn(1, 3, 5, 7)
    model = tvmfuse.compile(net, x, trials=0, no_log=True)
    assert model.report["verify"]["passed"]
    assert model.report["kernels"]["after"] <= 5  # two changes of layout at the ends
    with torch.no_grad():
        torch.testing.assert_close(torch.as_tensor(model(x)), net(x), rtol=1e-5, atol=1e-5)
