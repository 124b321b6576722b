import math

import pytest
import torch
from torch.nn import functional as F

X = torch.arange(12.0).reshape(3, 4)
INDEX = torch.tensor([[0, 2, 2], [1, 1, 0]])
SRC = torch.tensor([[10.0, -3.0, 7.0, 99.0], [0.5, 2.0, -8.0, 99.0]])


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("x", [X, X.long()], ids=["float", "int"])
def test_without_the_target(same, reduce, x):
    def call(t):
        return t.scatter_reduce(0, INDEX, SRC.to(t.dtype), reduce, include_self=False)

    same("scatter_reduce.two", call, x)


def test_mean_with_the_target(same):
    same("scatter_reduce.two", lambda t: t.scatter_reduce(1, INDEX, SRC, "mean"), X)


@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_older_spelling(same, reduce):
    same("scatter.reduce", lambda t: t.scatter(0, INDEX, SRC, reduce=reduce), X)
    same("scatter.value_reduce", lambda t: t.scatter(0, INDEX, 3.0, reduce=reduce), X)


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include", [True, False])
def test_whole_slices(same, reduce, include):
    def call(t):
        return t.index_reduce(0, torch.tensor([2, 0, 2]), X + 1, reduce, include_self=include)

    same("index_reduce.default", call, X)


def test_masks_and_places(same):
    mask = torch.tensor([True, False, True, True])
    same("masked_scatter.default", lambda t: t.masked_scatter(mask, -X), X)
    places = torch.tensor([[0, -1], [5, 5]])
    for add in (True, False):
        values = torch.tensor([[1.0, 2.0], [3.0, 3.0]])
        same("put.default", lambda t, a=add, v=values: torch.put(t, places, v, accumulate=a), X)


@pytest.mark.parametrize("value", [0.5, [1.0, 2.0, 3.0, 4.0]])
@pytest.mark.parametrize("rows", [True, False])
def test_writing_through_a_mask(same, rows, value):
    def call(t):
        mask = t[:, 0] > 2 if rows else t > 4
        return t.index_put((mask,), torch.tensor(value if rows else 0.5))

    same("index_put.default", call, X)


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 3])
def test_diagonal(same, offset):
    length = X.diagonal(offset).shape[0]
    same(
        "diagonal_scatter.default",
        lambda t: torch.diagonal_scatter(t, torch.full((length,), -1.0), offset),
        X,
    )


@pytest.mark.parametrize("right", [True, False])
def test_sorted_places(same, right):
    sequence = torch.tensor([[1.0, 3.0, 3.0, 5.0], [0.0, 2.0, 4.0, 6.0]])
    values = torch.tensor([[3.0, 9.0, -1.0, math.nan], [2.0, 5.0, 6.0, 0.0]])
    same("searchsorted.Tensor", lambda v: torch.searchsorted(sequence, v, right=right), values)
    same("searchsorted.Scalar", lambda s: torch.searchsorted(s, 2.5, right=right), sequence[1])
    same("bucketize.Tensor", lambda v: torch.bucketize(v, sequence[1], right=right), values)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, math.inf])
def test_distances(same, p):
    same("_cdist_forward.default", lambda t: torch.cdist(t, t[:2] + 0.5, p), X, rtol=1e-4)
    same("_pdist_forward.default", lambda t: F.pdist(t, p), X, rtol=1e-4)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [True, False])
def test_bags(same, mode, last):
    offsets = torch.tensor([0, 2, 2, 5]) if last else torch.tensor([0, 2, 2])

    def call(weight):
        ids = torch.tensor([1, 0, 2, 2, 1])
        return F.embedding_bag(
            ids, weight, offsets, mode=mode, include_last_offset=last, padding_idx=2
        )

    same("_embedding_bag_forward_only.default", call, X)


def test_weighted_bags(same):
    def call(weight):
        ids, shares = torch.tensor([1, 0, 2]), torch.tensor([0.5, 2.0, -1.0])
        offsets = torch.tensor([0, 1])
        return F.embedding_bag(ids, weight, offsets, mode="sum", per_sample_weights=shares)

    same("_embedding_bag_forward_only.default", call, X)


def test_views_and_places(same):
    same("as_strided.default", lambda t: torch.as_strided(t, (3, 2), (1, 4), 1), X)
    same("take.default", lambda t: torch.take(t, torch.tensor([[0, -1], [5, -12]])), X)


def test_an_empty_tensor_joins_anything(same):
    same("cat.default", lambda t: torch.cat([t, torch.zeros(0), t], 1), X)
