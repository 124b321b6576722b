"""Every rewrite, by the numbers: these were silently wrong or crashed without it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)
I = torch.arange(-3, 3).reshape(2, 3)  # noqa: E741


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, -1],
        lambda x: torch.select(x, 2, -4),
        lambda x: x[:, torch.tensor([-1, 0])],
        lambda x: x[torch.tensor([0, -1]), torch.tensor([-2, 1])],
        lambda x: torch.add(x, x * x, alpha=3),
        lambda x: torch.sub(x, x * x, alpha=0.5),
        lambda x: torch.rsub(x, 2, alpha=3),
        lambda x: torch.div(x, 2, rounding_mode="trunc"),
        lambda x: torch.div(x, 1.5, rounding_mode="floor"),
    ],
)
def test_float_forms(assert_matches_eager, function):
    assert_matches_eager(Lambda(function), X)


@pytest.mark.parametrize(
    "function",
    [
        lambda i: i * 0.5,
        lambda i: i / 2,
        lambda i: i < 1.5,
        lambda i: i // 2,
        lambda i: 2.5 - i,
        lambda i: (i > 0) * 2.5,
        lambda i: i.abs() ** 0.5,
        lambda i: i + torch.ones(3),
        lambda i: i.int() + i,
        lambda i: i == 1.5,
    ],
)
def test_integer_forms(assert_matches_eager, function):
    assert_matches_eager(Lambda(function), I)


def test_computed_negative_indices(assert_matches_eager):
    assert_matches_eager(Lambda(lambda x, i: x[:, i]), X, torch.tensor([-1, 2, -3]))


def assigned(index, *shape):
    def change(x):
        y = x.clone()
        y[index] = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
        return y

    return change


ALL = slice(None)
PICK, OTHER, COLUMN = torch.tensor([-1, 0]), torch.tensor([2, -3]), torch.tensor([[1], [0]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, PICK, OTHER],
        lambda x: x[PICK, :, OTHER],
        lambda x: x[:, COLUMN, OTHER],
        assigned(PICK),
        assigned(PICK, 2, 3, 4),
        assigned((PICK, COLUMN, OTHER), 2, 2),
        assigned((PICK, OTHER), 2, 4),
        assigned((COLUMN, OTHER), 2, 2, 4),
        assigned((ALL, OTHER), 2, 2, 4),
        assigned((ALL, ALL, PICK), 3, 2),
        assigned((ALL, PICK, OTHER), 2, 2),
        assigned((PICK, ALL, OTHER), 2, 3),
        lambda x: x.index_add(0, torch.tensor([1, 1, 0]), torch.ones(3, 3, 4)),
        lambda x: x.index_copy(1, OTHER % 3, torch.ones(2, 2, 4)),
    ],
)
def test_advanced_indexing(assert_matches_eager, function):
    assert_matches_eager(Lambda(function), X)


def test_fold_and_unfold(assert_matches_eager):
    assert_matches_eager(Lambda(lambda x: F.fold(x, (4, 4), 2)), torch.rand(1, 8, 9))
    assert_matches_eager(Lambda(lambda x: F.unfold(x, 2)), torch.rand(1, 2, 4, 4))


def test_zero_rank_does_not_widen(assert_matches_eager):
    scale = torch.tensor(1.5, dtype=torch.float64)
    workload = assert_matches_eager(Lambda(lambda x, s: x * s), X, scale)
    assert workload.signature.outputs[0].dtype == "float32"


@pytest.mark.parametrize("align_corners", [False, True])
def test_grid_sample(assert_matches_eager, align_corners):
    def sample(x, grid):
        return F.grid_sample(x, grid, align_corners=align_corners)

    grid = torch.rand(1, 5, 6, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert_matches_eager(Lambda(sample), X[None].reshape(1, 2, 3, 4), grid)


def test_momentum_without_new_statistics(assert_matches_eager):
    def forward(x):
        mean, variance = torch.zeros(3), torch.ones(3)
        return torch.native_batch_norm(x, None, None, mean, variance, True, -1.0, 0.5)[0]

    assert_matches_eager(Lambda(forward), X)
