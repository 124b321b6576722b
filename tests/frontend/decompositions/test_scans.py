import math

import pytest
import torch

X = torch.tensor([[1.0, 3.0, 3.0, 2.0, 4.0], [2.0, math.nan, 5.0, 1.0, 0.0]])


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("x", [X, torch.tensor([[3, 1, 3, 0]])], ids=["float", "int"])
def test_extremes_so_far(same, x, dim):
    same("cummax.default", lambda t: torch.cummax(t, dim), x)
    same("cummin.default", lambda t: torch.cummin(t, dim), x)


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_log_of_sums(same, n):
    x = torch.linspace(-90, 90, n).flip(0)
    same("logcumsumexp.default", lambda t: torch.logcumsumexp(t, 0), x)


def test_log_of_sums_at_infinity(same):
    x = torch.tensor([-math.inf, -math.inf, 1.0, math.inf, 2.0])
    same("logcumsumexp.default", lambda t: torch.logcumsumexp(t, 0), x)
