"""Indices outside of their tensors are refused as eager refuses them, and nothing is read there."""

import pytest
import torch
from torch import nn

import tvmfuse
from tvmfuse.errors import InputError
from tvmfuse.frontend.import_model import import_module


class Rows(nn.Module):
    """An index that is an argument, moved, and one that is computed."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, ids, x):
        return self.table(ids.unsqueeze(0)), x.index_select(0, ids * 2), x[ids]


def of(function, *inputs):
    class Module(nn.Module):
        def forward(self, *args):
            return function(*args)

    return import_module(Module().eval(), inputs)


def bounds(workload):
    return {(b.position, b.low, b.high) for b in workload.bounds}


X = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([1, 2, 3])


@pytest.fixture(scope="module")
def rows():
    module = Rows().eval()
    return module, tvmfuse.compile(module, (IDS, X), trials=0)


@pytest.mark.parametrize("ids", [[1, 2, 3], [0, 3, 0], [3, 3, 3]])
def test_what_is_inside(rows, ids):
    module, compiled = rows
    ids = torch.tensor(ids)
    with torch.no_grad():
        for got, want in zip(compiled(ids, X), module(ids, X), strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "ids, message",
    [
        ([1, -1, 3], r"argument 'ids': the index -1 at \[1\] is not in 0 \.\. 9"),
        ([1, 2, 10], r"argument 'ids': the index 10 at \[2\] is not in 0 \.\. 9"),
        ([2**40, 2, 1], r"the index 1099511627776 at \[0\]"),
        ([1, 4, 3], "computed index of index_select of 8 entries"),
    ],
)
def test_what_is_outside_is_refused_by_both(rows, ids, message):
    module, compiled = rows
    ids = torch.tensor(ids)
    with pytest.raises((IndexError, RuntimeError)), torch.no_grad():
        module(ids, X)
    with pytest.raises(InputError, match=message):
        compiled(ids, X)


def test_numpy_arguments_too(rows):
    ids = torch.tensor([1, 2, 77])
    with pytest.raises(InputError, match="77"):
        rows[1](ids.numpy(), X.numpy())


def test_the_place_is_in_the_message(rows):
    with pytest.raises(InputError, match=r"test_bounds\.py"):
        rows[1](torch.tensor([1, 2, -5]), X)


def test_a_refused_call_changes_no_state():
    class Keep(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(5))

        def forward(self, ids, x):
            self.total += 1
            return x.index_select(0, ids + 1).sum(0) + self.total

    model = tvmfuse.compile(Keep().eval(), (IDS, X), trials=0)
    first = model(IDS, X)
    with pytest.raises(InputError, match="changed nothing"):
        model(IDS + 4, X)
    torch.testing.assert_close(model(IDS, X), first + 1)


@pytest.mark.parametrize(
    "function, found",
    [
        (lambda i, x: x[i], {(0, -8, 8)}),
        (lambda i, x: x[:, i], {(0, -5, 5)}),
        (lambda i, x: x[i, i], {(0, -8, 8), (0, -5, 5)}),
        (lambda i, x: x.gather(0, i.reshape(3, 1).expand(3, 5)), {(0, 0, 8)}),
        (lambda i, x: x.scatter(1, i[None].expand(8, 3), 1.0), {(0, 0, 5)}),
        (lambda i, x: x.gather(0, i.to(torch.int32).long()[:, None]), set()),  # may wrap around
    ],
)
def test_bounds_of_arguments(function, found):
    workload = of(function, IDS, X)
    assert bounds(workload) == found
    assert len(workload.checks) == (not found)


@pytest.mark.parametrize(
    "function",
    [
        lambda i, x: x[i.clamp(0, 7)],
        lambda i, x: x[i % 8 - 8],
        lambda i, x: x[torch.where(i > 5, 3, 0)],
        lambda i, x: x.gather(1, x.argmax(1, keepdim=True)),
        lambda i, x: x.gather(1, x.topk(2)[1]),
        lambda i, x: x[(i > 2).long()],
        lambda i, x: x[torch.tensor([0, -1])] + i.sum(),
        lambda i, x: x[torch.arange(8).flip(0)] + i.sum(),
    ],
)
def test_what_cannot_be_outside_is_not_checked(function):
    workload = of(function, IDS, X)
    assert not workload.bounds and not workload.checks


@pytest.mark.parametrize(
    "function",
    [
        lambda i, x: x[i + 1],
        lambda i, x: x[i % 9],
        lambda i, x: x[(x[:3, 0].clamp(0, 7)).long()] + i.sum(),  # NaN comes through
        lambda i, x: x.gather(1, x.argmax(0)[None]),
    ],
)
def test_what_may_be_outside_is_checked_once(function):
    workload = of(function, IDS, X)
    assert not workload.bounds and len(workload.checks) == 1


def test_one_check_for_several_readers():
    workload = of(lambda i, x: (x[i + 1], x.exp()[i + 1]), IDS, X)
    assert len(workload.checks) == 2  # two additions
    workload = of(lambda i, x: (lambda j: (x[j], x.exp()[j]))(i + 1), IDS, X)
    assert len(workload.checks) == 1


def test_masks_are_no_indices():
    workload = of(lambda i, x: torch.where(i[:, None] > 1, x[:3], 0.0), IDS, X)
    assert not workload.bounds and not workload.checks


def test_one_hot_refuses_what_eager_refuses():
    def forward(ids, x):
        return nn.functional.one_hot(ids, 5), nn.functional.one_hot((x > 0).sum(-1) * 2, 4)

    class Module(nn.Module):
        def forward(self, ids, x):
            return forward(ids, x)

    model = tvmfuse.compile(Module().eval(), (IDS, torch.zeros(2, 2)), trials=0)
    for got, want in zip(model(IDS, torch.zeros(2, 2)), forward(IDS, torch.zeros(2, 2)),
                         strict=True):  # fmt: skip
        assert torch.equal(got, want)
    with pytest.raises(InputError, match=r"'ids': the index 5 at \[1\].*one_hot of 5 entries"):
        model(torch.tensor([0, 5, 1]), torch.zeros(2, 2))
    with pytest.raises(InputError, match="computed index of one_hot of 4 entries"):
        model(IDS, torch.ones(2, 2))


def test_unsafe_forms_are_checked_as_well():
    def forward(x, ids, values):
        y = torch.ops.aten._unsafe_index(x, [None, ids])
        return y, torch.ops.aten._unsafe_index_put(x, [ids], values)

    found = bounds(of(forward, X, IDS, torch.ones(3, 5)))
    assert found == {(1, -5, 5), (1, -8, 8)}
    masked = of(lambda x, i: torch.ops.aten._unsafe_masked_index(x, i >= 0, [i], 0.0), X[0], IDS)
    assert not masked.bounds and not masked.checks  # clamped by its own definition


def test_assertions_hold_or_raise():
    class Positive(nn.Module):
        def forward(self, x):
            torch._assert_async((x > 0).all(), "x must be positive")
            return x.log()

    model = tvmfuse.compile(Positive().eval(), X.abs() + 0.1, trials=0)
    torch.testing.assert_close(model(X.abs() + 1), (X.abs() + 1).log())
    with pytest.raises(InputError, match=r"assertion fails \(x must be positive\).*test_bounds"):
        model(X)
