import math

import pytest
import torch

NAN, INF = math.nan, math.inf
X = torch.tensor([[3.0, 1.0, 3.0, -2.0], [NAN, 0.0, 5.0, NAN], [-INF, -INF, -INF, -INF]])
WHOLE = torch.tensor([[3, 1, 3, -2], [0, 0, 0, 0], [7, 9, 9, 7]])
SCALAR = torch.tensor(2.0)

CALLS = {
    "argmax.default": lambda x: (x.argmax(1), x.argmax(0, keepdim=True), x.argmax()),
    "argmin.default": lambda x: (x.argmin(-1), x.argmin(0), x.argmin(keepdim=True)),
    "max.dim": lambda x: (x.max(1), x.max(0, keepdim=True)),
    "min.dim": lambda x: (x.min(1), x.min(0, keepdim=True)),
    "any.dim": lambda x: x.any(1),
    "any.default": lambda x: x.any(),
    "all.dim": lambda x: x.all(0, keepdim=True),
    "all.default": lambda x: x.all(),
    "count_nonzero.dim_IntList": lambda x: torch.count_nonzero(x, (0, 1)),
}


@pytest.mark.parametrize(
    "x", [X, WHOLE, WHOLE != 0, WHOLE.to(torch.uint8)], ids=["float", "int", "bool", "u8"]
)
@pytest.mark.parametrize("name", CALLS)
def test_choices(same, name, x):
    if x.dtype == torch.bool and name.startswith(("arg", "max", "min")):
        pytest.skip("PyTorch has no such choice among booleans")
    same(name, CALLS[name], x)


@pytest.mark.parametrize("name", ["argmax.default", "max.dim", "any.dim"])
def test_a_tensor_without_dimensions(same, name):
    calls = {
        "argmax.default": lambda x: x.argmax(0),
        "max.dim": lambda x: x.max(0),
        "any.dim": lambda x: x.any(0),
    }
    same(name, calls[name], SCALAR)


def test_nothing_is_all_and_not_any(same):
    empty = torch.zeros(0, 3)
    same("all.dim", lambda x: x.all(0), empty)
    same("any.dim", lambda x: x.any(0), empty)


@pytest.mark.parametrize("unbiased", [True, False])
def test_variance_and_mean(same, unbiased):
    x = torch.linspace(-2, 5, 24).reshape(4, 6)
    same("var_mean.correction", lambda t: torch.var_mean(t, 1, unbiased=unbiased), x)


def test_order_statistics(same):
    x = torch.tensor([[5.0, 1.0, 4.0, 2.0, 3.0], [0.0, NAN, 2.0, 1.0, -1.0]])
    same("kthvalue.default", lambda t: torch.kthvalue(t, 2, 1, keepdim=True), x[:1])
    same("median.dim", lambda t: torch.median(t, 1)[0], x)
    same("median.default", lambda t: torch.median(t), x[0])
    same("nanmedian.dim", lambda t: torch.nanmedian(t, 1)[0], x)
    same("nanmedian.default", lambda t: torch.nanmedian(t), x)
    same("nanmedian.default", lambda t: torch.nanmedian(t), torch.full((3,), NAN))
