"""How elementary functions become arithmetic when TVM lowers a kernel for this CPU.

tanh: TVM takes it as (1 − e) / (1 + e) with e = exp(−2|x|), whose numerator is a difference of
numbers near 1: the error is half a unit of 1 however small x is, 1e-5 of the result at x = 0.005,
and denormal inputs vanish. Here it is an odd polynomial where x is small, and 1 − 2/(exp(2|x|) + 1)
beyond: in float32 right to 2e-7 of the result everywhere.

exp and erf of float32: LLVM calls the C library for each element of a vector, 16 calls where the
machine has one register (6 and 12 times as long). Here they are Cephes' polynomials (Moshier,
single precision), right to 2e-7 of the result over the whole range; exp in three factors, two of
them powers of two, so that its ends are denormal, zero and infinite as they should be.

A rule belongs to TVM's own operator and holds for every kernel that this process compiles. Its
operand is named once (a Let): groups are inlined into one expression before it is applied, and the
operand would stand there sixteen times. TVM's analysis of a Let within a Let within a Let still
grows 18-fold with each (0.07 s at four, 22 s at six): `tvmfuse.fusion.grow` cuts such chains.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

# Below the first number tanh(x) = x + x³ · (polynomial in x², highest power first): Cephes' tanhf,
# and the Taylor series.
_SERIES: dict[str, tuple[float, tuple[float, ...]]] = {
    "float32": (0.625, (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2,
                        1.33314422036e-1, -3.33332819422e-1)),
    "float64": (0.02, (62 / 2835, -17 / 315, 2 / 15, -1 / 3)),
}  # fmt: skip


def lower_tanh(call: Any) -> Any:
    """Rule for ``tirx.tanh``, scalar or vector; other types than these are computed in float32."""
    operand = call.args[0]
    dtype, _, lanes = str(operand.ty.dtype).partition("x")
    if dtype not in _SERIES:
        wide = "float32" + (f"x{lanes}" if lanes else "")
        return tirx.Cast(operand.ty.dtype, tirx.tanh(tirx.Cast(wide, operand)))
    bound, coefficients = _SERIES[dtype]
    x = tirx.Var("x", operand.ty)

    def number(value: float) -> Any:
        one = tirx.const(value, dtype)
        return tirx.Broadcast(one, int(lanes)) if lanes else one

    square = x * x
    series = number(coefficients[0])
    for factor in coefficients[1:]:
        series = series * square + number(factor)
    size = tirx.abs(x)
    large = number(1.0) - number(2.0) / (tirx.exp(size * number(2.0)) + number(1.0))
    signed = tirx.Select(x < number(0.0), number(0.0) - large, large)
    small = series * square * x + x
    return tirx.Let(x, operand, tirx.Select(size < number(bound), small, signed))


_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # Cody and Waite: their sum is ln 2
_LOWEST, _HIGHEST = -104.0, 89.0  # exp is 0 below and infinite above
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
        5.0000001201e-1)  # fmt: skip
_ERF = (7.853861353153693e-5, -8.010193625184903e-4, 5.188327685732524e-3, -2.685381193529856e-2,
        1.128358514861418e-1, -3.761262582423300e-1, 1.128379165726710)  # fmt: skip
# erfc(x) = exp(-x^2)/x times a polynomial in 1/x^2, for 1 < x < 2 and beyond.
_ERFC_NEAR = (2.326819970068386e-2, -1.387039388740657e-1, 3.687424674597105e-1,
              -5.824733027278666e-1, 6.210004621745983e-1, -4.944515323274145e-1,
              3.404879937665872e-1, -2.741127028184656e-1, 5.638259427386472e-1)  # fmt: skip
_ERFC_FAR = (-1.047766399936249e1, 1.297719955372516e1, -7.495518717768503, 2.921019019210786,
             -1.015265279202700, 4.218463358204948e-1, -2.820767439740514e-1,
             5.641895067754075e-1)  # fmt: skip
_ERF_ONE = 4.0  # erf is 1 to the last digit beyond


class _Vector:
    """Constants and steps in the type of one operand, scalar or vector."""

    def __init__(self, operand: Any) -> None:
        self.ty = operand.ty
        _, _, lanes = str(operand.ty.dtype).partition("x")
        self.lanes = int(lanes or 1)
        self.int32 = f"int32x{lanes}" if lanes else "int32"

    def number(self, value: float, dtype: str = "float32") -> Any:
        one = tirx.const(value, dtype)
        return tirx.Broadcast(one, self.lanes) if self.lanes > 1 else one

    def horner(self, x: Any, factors: tuple[float, ...]) -> Any:
        total = self.number(factors[0])
        for factor in factors[1:]:
            total = total * x + self.number(factor)
        return total

    def power(self, n: Any) -> Any:
        """2^n by its exponent's bits."""
        bits = tirx.shift_left(n + self.number(127, "int32"), self.number(23, "int32"))
        return tirx.reinterpret(self.ty.dtype, bits)


def lower_exp(call: Any) -> Any:
    """Rule for ``tirx.exp``: float32 is written out, NaN stays NaN; other types stay calls."""
    operand = call.args[0]
    if not _is_float32(operand):
        return tirx.call_llvm_pure_intrin(operand.ty.dtype, "llvm.exp", operand)
    v = _Vector(operand)
    t, n, r = (tirx.Var(name, v.ty) for name in ("t", "n", "r"))
    i = tirx.Var("i", v.int32)
    # max(a, b) is b where either is NaN, so the argument stands second
    clamped = tirx.max(v.number(_LOWEST), tirx.min(v.number(_HIGHEST), operand))
    half = tirx.shift_right(i, v.number(1, "int32"))
    p = v.horner(r, _EXP) * (r * r) + (r + v.number(1.0))
    result = tirx.Let(i, tirx.Cast(v.int32, n), p * v.power(half) * v.power(i - half))
    reduced = t - n * v.number(_LN2_HIGH) - n * v.number(_LN2_LOW)
    result = tirx.Let(r, reduced, result)
    result = tirx.Let(n, tirx.nearbyint(t * v.number(_LOG2_E)), result)
    return tirx.Let(t, clamped, result)


def lower_erf(call: Any) -> Any:
    """Rule for ``tirx.erf``, as for exp; both forms are computed, one is taken."""
    operand = call.args[0]
    if not _is_float32(operand):
        return call
    v = _Vector(operand)
    x, a, q = (tirx.Var(name, v.ty) for name in ("x", "a", "q"))
    s = q * q
    tail = tirx.Select(a < v.number(2.0), v.horner(s, _ERFC_NEAR), v.horner(s, _ERFC_FAR))
    size = v.number(1.0) - tirx.exp(v.number(0.0) - a * a) * q * tail
    large = tirx.Select(x < v.number(0.0), v.number(0.0) - size, size)
    large = tirx.Let(q, v.number(1.0) / a, large)
    kept = tirx.max(v.number(1.0), tirx.min(v.number(_ERF_ONE), tirx.abs(x)))
    small = x * v.horner(x * x, _ERF)
    found = tirx.Select(tirx.abs(x) < v.number(1.0), small, tirx.Let(a, kept, large))
    return tirx.Let(x, operand, found)


def _is_float32(operand: Any) -> bool:
    return str(operand.ty.dtype).partition("x")[0] == "float32"


def register() -> None:
    """Tell TVM the rules; again and again does no harm."""
    for name, rule in (("tanh", lower_tanh), ("exp", lower_exp), ("erf", lower_erf)):
        tirx.register_intrin_lowering(f"tirx.{name}", target="llvm", f=rule, level=99)


register()
