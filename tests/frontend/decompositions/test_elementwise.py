import math

import pytest
import torch

from tvmfuse.frontend.decompositions.elementwise import prelu

EDGES = [0.0, -0.0, 1.0, -1.0, 0.3, -7.5, 25.0, 88.0, 1e-30, 1e30, math.inf, -math.inf, math.nan]
X = torch.tensor(EDGES)
GRID = torch.meshgrid(X, X, indexing="ij")

UNARY = {
    "exp2.default": torch.exp2,
    "log1p.default": torch.log1p,
    "expm1.default": torch.expm1,
    "sinh.default": torch.sinh,
    "cosh.default": torch.cosh,
    "signbit.default": torch.signbit,
    "isfinite.default": torch.ops.aten.isfinite.default,
    "isinf.default": torch.isinf,
    "erfc.default": torch.erfc,
    "softplus.default": torch.nn.functional.softplus,
}
BINARY = {
    "fmax.default": torch.fmax,
    "fmin.default": torch.fmin,
    "hypot.default": torch.hypot,
    "copysign.Tensor": torch.copysign,
    "heaviside.default": torch.heaviside,
    "logaddexp.default": torch.logaddexp,
    "logaddexp2.default": torch.logaddexp2,
}


@pytest.mark.parametrize("name", [n for n in UNARY if not n.startswith("isfinite")])
def test_unary(same, name):
    same(name, UNARY[name], X, rtol=3e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["signbit.default", "sinh.default", "erfc.default"])
def test_unary_of_integers(same, name):
    same(name, UNARY[name], torch.tensor([-3, 0, 1, 4]))


@pytest.mark.parametrize("name", BINARY)
def test_binary(same, name):
    same(name, BINARY[name], *GRID, rtol=3e-6)


@pytest.mark.parametrize("name", ["log1p.default", "expm1.default"])
def test_digits_near_zero(same, name):
    small = torch.logspace(-12, 0, 50)
    same(name, UNARY[name], torch.cat([small, -0.9 * small]), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("weight", [torch.tensor([0.25]), torch.tensor([0.1, -0.2, 0.3])])
def test_slopes(weight):
    x = torch.linspace(-3, 3, 24).reshape(2, 3, 4)
    torch.testing.assert_close(prelu(x, weight), torch.nn.functional.prelu(x, weight))


def test_exponents(same):
    same("ldexp.Tensor", torch.ldexp, torch.tensor([1.5, -2.0]), torch.tensor([3, -4]))


def test_bounds_that_broadcast_the_value(same):
    low, high = torch.tensor([[0.0], [1.0]]), torch.tensor([2.0, 0.5, math.nan])
    same("clamp.Tensor", lambda x: torch.clamp(x, low, high), torch.tensor([3.0, -1.0, 1.0]))


@pytest.mark.parametrize("beta", [0, 1, 0.5])
@pytest.mark.parametrize("alpha", [1, 2.5])
def test_products_onto_something(same, alpha, beta):
    m, v = torch.arange(6.0).reshape(2, 3), torch.arange(3.0)
    lost = torch.full((2,), math.nan if beta == 0 else 1.0)
    same("addmv.default", lambda x: torch.addmv(x, m, v, alpha=alpha, beta=beta), lost)
    square = torch.full((2, 3), math.nan if beta == 0 else 1.0)
    same("addr.default", lambda x: torch.addr(x, v[:2], v, alpha=alpha, beta=beta), square)
    batch = torch.arange(8.0).reshape(2, 2, 2)
    two = torch.ones(2, 2)
    same("addbmm.default", lambda x: torch.addbmm(x, batch, batch, alpha=alpha, beta=beta), two)


@pytest.mark.parametrize("divisor", [3.0, -3.0, 0.7, math.inf, -math.inf, math.nan, 0.0])
def test_remainder(same, divisor):
    x = torch.tensor([5.0, -5.0, 0.0, 3.0, -3.0, 1e-3, -7.5, math.inf, math.nan])
    same("remainder.Scalar", lambda t: torch.remainder(t, divisor), x)
    y = torch.full((9,), divisor)
    same("remainder.Tensor", lambda t: torch.remainder(t, y), x)
