"""How elementary functions become arithmetic when TVM lowers a kernel for this CPU.

tanh: TVM takes it as (1 − e) / (1 + e) with e = exp(−2|x|), whose numerator is a difference of
numbers near 1: the error is half a unit of 1 however small x is, 1e-5 of the result at x = 0.005,
and denormal inputs vanish. Here it is an odd polynomial where x is small, and 1 − 2/(exp(2|x|) + 1)
beyond: in float32 right to 2e-7 of the result everywhere.

The rule belongs to TVM's own operator and holds for every kernel that this process compiles. Its
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


def register() -> None:
    """Tell TVM the rules; again and again does no harm."""
    tirx.register_intrin_lowering("tirx.tanh", target="llvm", f=lower_tanh, level=99)


register()
