import pytest
import torch
from torch.nn import functional as F

X = torch.randn(1, 2, 9, 13, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("size", [(4, 5), (9, 13), (20, 7), (1, 1)])
def test_antialias(same, mode, align, size):
    same(
        f"_upsample_{mode}2d_aa.default",
        lambda t: F.interpolate(t, size, mode=mode, align_corners=align, antialias=True),
        X,
        atol=1e-5,
    )


@pytest.mark.parametrize("factor", [0.4, 1.7])
def test_antialias_by_factor(same, factor):
    same(
        "_upsample_bilinear2d_aa.default",
        lambda t: F.interpolate(t, scale_factor=factor, mode="bilinear", antialias=True),
        X,
        atol=1e-5,
    )


@pytest.mark.parametrize("size", [(7, 13), (20, 31), (3, 3)])
def test_nearest_to_odd_sizes(same, size):
    same("upsample_nearest2d.default", lambda t: F.interpolate(t, size), X)


def test_nan_outside_of_the_window_stays_there(same):
    x = torch.randn(1, 1, 32, 32)
    x[0, 0, 16, 16] = float("nan")
    same(
        "_upsample_bilinear2d_aa.default",
        lambda t: F.interpolate(t, (20, 12), mode="bilinear", antialias=True),
        x,
    )
