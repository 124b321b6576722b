import math

import pytest
import torch
from torch.nn import functional as F

X = torch.randn(2, 3, 9, 7, generator=torch.Generator().manual_seed(0))
LOW = torch.full((1, 1, 4, 4), -math.inf)
EQUAL = torch.ones(1, 1, 6, 6)
NAN = X.clone()
NAN[0, 0, 3, 3] = math.nan


@pytest.mark.parametrize("x", [X, LOW, EQUAL, NAN], ids=["drawn", "-inf", "equal", "nan"])
@pytest.mark.parametrize("options", [{}, {"stride": 1}, {"padding": 1, "ceil_mode": True}])
def test_places_of_maxima(same, x, options):
    same(
        "max_pool2d_with_indices.default",
        lambda t: F.max_pool2d(t, (3, 2), return_indices=True, **options),
        x,
    )


def test_places_in_three_dimensions(same):
    x = X.reshape(1, 2, 3, 9, 7)
    same(
        "max_pool3d_with_indices.default",
        lambda t: F.max_pool3d(t, 3, 2, 1, return_indices=True),
        x,
    )


@pytest.mark.parametrize("size", [(2, 3), (1, 1), (5, 7), 4])
def test_uneven_maxima(same, size):
    same(
        "adaptive_max_pool2d.default",
        lambda t: F.adaptive_max_pool2d(t, size, return_indices=True),
        X,
    )


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("ceil", [True, False])
def test_divisor(same, include, ceil):
    same(
        "avg_pool2d.default",
        lambda t: F.avg_pool2d(t, 3, 2, 1, ceil, include, divisor_override=5),
        X,
    )
    volume = X.reshape(1, 2, 3, 9, 7)
    same("avg_pool3d.default", lambda t: F.avg_pool3d(t, 2, divisor_override=3), volume)


@pytest.mark.parametrize("dim", [0, 2, -1])
def test_sliding_slices(same, dim):
    same("unfold.default", lambda t: t.unfold(dim, 2, 1), X)
