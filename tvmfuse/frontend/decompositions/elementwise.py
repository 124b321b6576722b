"""Element-wise operators by simpler ones, special values included."""

from __future__ import annotations

import math

import torch

_ATEN = torch.ops.aten


def clamp_tensor(
    x: torch.Tensor, min: torch.Tensor | None = None, max: torch.Tensor | None = None
) -> torch.Tensor:
    """Bounds may broadcast the value; NaN on any side stays NaN."""
    if min is not None:
        x = torch.maximum(x, min)
    return x if max is None else torch.minimum(x, max)


def remainder(x: torch.Tensor, y: torch.Tensor | float) -> torch.Tensor:
    """Remainder with the sign of the divisor, by that with the sign of the dividend.

    TVM takes ``x - floor(x / y) * y``, which an infinite divisor makes NaN.
    """
    whole = not torch.result_type(x, y).is_floating_point
    if whole:
        return NotImplemented
    left = torch.fmod(x, y)
    if isinstance(y, torch.Tensor):
        other = torch.where(y < 0, left > 0, left < 0)
    else:
        other = left > 0 if y < 0 else left < 0
    return torch.where(other, left + y, left)


def fmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Maximum that prefers a number to NaN."""
    return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, torch.maximum(x, y)))


def fmin(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Minimum that prefers a number to NaN."""
    return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, torch.minimum(x, y)))


def hypot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Length of (x, y), scaled so that the squares stay in range; infinity beats NaN."""
    x, y = x.abs(), y.abs()
    high, low = torch.maximum(x, y), torch.minimum(x, y)
    ratio = low / torch.where(high == 0, 1, high)
    length = high * torch.sqrt(1 + ratio * ratio)
    infinite = (x == math.inf) | (y == math.inf)
    return torch.where(infinite, math.inf, length)


def _floating(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def exp2(x: torch.Tensor) -> torch.Tensor:
    """2 to the power of x."""
    return torch.pow(2.0, x)


def ldexp(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """x times 2 to the power of an integer."""
    return x * torch.pow(2.0, exponent)


def sinh(x: torch.Tensor) -> torch.Tensor:
    """By expm1, which keeps the digits near zero."""
    x = _floating(x)
    half = torch.expm1(x.abs()) / 2
    value = half + half / (2 * half + 1)
    big = torch.exp(x.abs() - math.log(2.0))
    value = torch.where(x.abs() > 20, big, value)
    return torch.where(x < 0, -value, torch.where(x == 0, x, value))


def cosh(x: torch.Tensor) -> torch.Tensor:
    """Mean of exp(x) and exp(-x), halved in the exponent so that it overflows last."""
    x = _floating(x)
    side = torch.exp(x.abs() - math.log(2.0))
    return side + 0.25 / side


def reciprocal(x: torch.Tensor) -> torch.Tensor:
    """Of integers as a float; floats are left to TVM."""
    return NotImplemented if x.is_floating_point() else torch.reciprocal(_floating(x))


def sign(x: torch.Tensor) -> torch.Tensor:
    """-1, 0 or 1; a boolean is its own."""
    if x.dtype == torch.bool:
        return x.clone()
    value = (x > 0).to(x.dtype) - (x < 0).to(x.dtype)
    return value if not x.is_floating_point() else torch.where(torch.isnan(x), 0.0, value)


def integer_power(x: torch.Tensor, exponent: torch.Tensor | int) -> torch.Tensor:
    """Squares and products, which wrap around as PyTorch's do; floats are left to ``pow``."""
    dtype = torch.result_type(x, exponent)
    if dtype.is_floating_point or dtype == torch.bool:
        return NotImplemented
    base, left = x.to(dtype), exponent
    result = torch.ones_like(base)
    if isinstance(left, int):
        if left < 0:
            return NotImplemented
        while left:
            result = result * base if left & 1 else result
            base, left = base * base, left >> 1
        return result
    base, left = torch.broadcast_tensors(base, left.to(dtype))
    first = base
    for bit in range(6):
        odd = (left // 2**bit) % 2 == 1
        result, base = torch.where(odd, result * base, result), base * base
    # A negative exponent leaves ±1 where the base is that, and nothing elsewhere.
    unit = torch.where(left % 2 == 0, first * first, first)
    inverse = torch.where((first == 1) | (first == -1), unit, 0)
    return torch.where(left < 0, inverse, result)


def log1p(x: torch.Tensor) -> torch.Tensor:
    """``log(1 + x)`` without the digits that the addition loses.

    Near zero the series of 2 atanh(s), s = x / (2 + x): for |x| < 0.4 its first left-out term is
    below 4e-10. (Kahan's quotient by ``(1 + x) - 1`` does not survive TVM's simplifier.)
    """
    x = _floating(x)
    s = x / (2 + x)
    square, series = s * s, torch.full_like(x, 1 / 13)
    for odd in (11, 9, 7, 5, 3, 1):
        series = series * square + 1 / odd
    return torch.where(x.abs() < 0.4, 2 * s * series, torch.log(1 + x))


def expm1(x: torch.Tensor) -> torch.Tensor:
    """``exp(x) - 1`` likewise; away from zero the subtraction loses nothing."""
    x = _floating(x)
    up = torch.exp(x)
    near = (up - 1) * (x / torch.log(torch.where((up == 1) | (up == 0), math.e, up)))
    return torch.where(up == 1, x, torch.where(x.abs() < 1, near, up - 1))


def prelu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A slope for each channel, or one for all."""
    if weight.numel() > 1:
        weight = weight.reshape([-1, *[1] * (x.ndim - 2)])
    elif x.ndim:
        weight = weight.reshape([1] * x.ndim)
    return torch.where(x > 0, x, weight * x)


def signbit(x: torch.Tensor) -> torch.Tensor:
    """Whether the sign is minus; -0 has one, which only its reciprocal shows."""
    if not x.is_floating_point():
        return x < 0
    return (x < 0) | ((x == 0) & (1 / x < 0))


def copysign(x: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
    """Magnitude of x with the sign of the other."""
    dtype = torch.result_type(x, sign)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    size = x.to(dtype).abs()
    return torch.where(signbit(sign), -size, size)


def erfc(x: torch.Tensor) -> torch.Tensor:
    """``1 - erf`` where that keeps its digits, and a Chebyshev fit beyond (relative error 1.2e-7).

    Fit of Numerical Recipes in C, 2nd edition, section 6.2 (``erfcc``).
    """
    x = _floating(x)
    z = x.abs()
    t = 1 / (1 + 0.5 * z)
    coefficients = (
        0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807,
        -0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223,
    )  # fmt: skip
    poly = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        poly = poly * t + c
    tail = t * torch.exp(-z * z + poly)
    far = torch.where(x < 0, 2 - tail, tail)
    return torch.where(z < 0.5, 1 - torch.erf(x), far)


def heaviside(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """0, 1, or the given value at 0; of NaN PyTorch makes 0."""
    return torch.where(x == 0, values, (x > 0).to(x.dtype))


def isfinite(x: torch.Tensor) -> torch.Tensor:
    """Neither NaN nor infinite."""
    if not x.is_floating_point():
        return torch.ones_like(x, dtype=torch.bool)
    return x.abs() < math.inf


def isnan(x: torch.Tensor) -> torch.Tensor:
    """Of integers none is."""
    if x.is_floating_point():
        return NotImplemented
    return torch.zeros_like(x, dtype=torch.bool)


def isinf(x: torch.Tensor) -> torch.Tensor:
    """Infinite, of either sign."""
    if not x.is_floating_point():
        return torch.zeros_like(x, dtype=torch.bool)
    return x.abs() == math.inf


def logaddexp(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``log(exp(x) + exp(y))``; equal infinities stay what they are."""
    high = torch.maximum(x, y)
    same = (x == y) & (x.abs() == math.inf)
    return torch.where(same, x, high + torch.log1p(torch.exp(-(x - y).abs())))


def logaddexp2(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same to the base 2."""
    scale = math.log(2.0)
    return logaddexp(x * scale, y * scale) / scale


def softplus(x: torch.Tensor, beta: float = 1, threshold: float = 20) -> torch.Tensor:
    """``log1p(exp(beta x)) / beta``, and x above the threshold."""
    scaled = x * beta
    return torch.where(scaled > threshold, x, torch.log1p(torch.exp(scaled)) / beta)


def _onto(x: torch.Tensor, product: torch.Tensor, beta: float, alpha: float) -> torch.Tensor:
    """``beta x + alpha product`` in the product's type; without ``beta`` x is not read."""
    dtype = torch.promote_types(x.dtype, product.dtype)
    if not dtype.is_floating_point:
        alpha, beta = int(alpha), int(beta)
    scaled = product if alpha == 1 else product * alpha
    if beta == 0:
        return scaled.expand(torch.broadcast_shapes(x.shape, scaled.shape)).clone()
    return ((x if beta == 1 else x * beta) + scaled).to(dtype)


def addr(
    x: torch.Tensor, one: torch.Tensor, other: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """Outer product onto a matrix; with ``beta`` 0 the matrix is not read, NaN or not."""
    product = torch.outer(one if alpha == 1 or one.dtype == torch.bool else one * alpha, other)
    if product.dtype == torch.bool:
        return (product & bool(alpha)) | (x & bool(beta))
    return _onto(x, product, beta, 1)


def addmv(
    x: torch.Tensor, a: torch.Tensor, v: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """Matrix times vector onto a vector."""
    return _onto(x, torch.mv(a, v), beta, alpha)


def addbmm(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """Sum of a batch of products onto a matrix."""
    return _onto(x, torch.bmm(a, b).sum(0), beta, alpha)


TABLE = {
    _ATEN.reciprocal.default: reciprocal,
    _ATEN.sign.default: sign,
    _ATEN.pow.Tensor_Scalar: integer_power,
    _ATEN.pow.Tensor_Tensor: integer_power,
    _ATEN.log1p.default: log1p,
    _ATEN.expm1.default: expm1,
    _ATEN.prelu.default: prelu,
    _ATEN.clamp.Tensor: clamp_tensor,
    _ATEN.remainder.Tensor: remainder,
    _ATEN.remainder.Scalar: remainder,
    _ATEN.fmax.default: fmax,
    _ATEN.fmin.default: fmin,
    _ATEN.hypot.default: hypot,
    _ATEN.exp2.default: exp2,
    _ATEN.ldexp.Tensor: ldexp,
    _ATEN.sinh.default: sinh,
    _ATEN.cosh.default: cosh,
    _ATEN.signbit.default: signbit,
    _ATEN.copysign.Tensor: copysign,
    _ATEN.erfc.default: erfc,
    _ATEN.heaviside.default: heaviside,
    _ATEN.isfinite.default: isfinite,
    _ATEN.isnan.default: isnan,
    _ATEN.isinf.default: isinf,
    _ATEN.logaddexp.default: logaddexp,
    _ATEN.logaddexp2.default: logaddexp2,
    _ATEN.softplus.default: softplus,
    _ATEN.addr.default: addr,
    _ATEN.addmv.default: addmv,
    _ATEN.addbmm.default: addbmm,
}
