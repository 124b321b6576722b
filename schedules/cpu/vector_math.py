"""Elementary functions as vector arithmetic, where LLVM's would be one library call an element."""

from __future__ import annotations

from tvmfuse.schedules.cpu.text import Writer, i64

LOWEST = -87.0  # below it exp gives 0, where float32 would still have denormal numbers

_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # Cody and Waite: their sum is ln 2
_POLYNOMIAL = (  # of Cephes' expf, for |f| ≤ ln(2)/2
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip


def write_exp(w: Writer, target: str, argument: str, lanes: int) -> None:
    """Write ``target = exp(argument)`` in float32 for arguments ≤ 0, over ``n < lanes``.

    2 units in the last place at most down to ``LOWEST``, and 0 below; NaN stays NaN. The buffers
    ``e_x``, ``e_n``, ``e_p`` of ``lanes`` elements hold what lies between.
    """
    lane = ("n", lanes, "vectorized") if lanes > 1 else ("n", 1, "serial")

    def step(line: str) -> None:
        with w.loops(lane):
            w.line(line)

    # max(a, b) is b where either is NaN, so the argument stands second
    step(f"e_x[n] = T.max(T.float32({LOWEST}), {argument})")
    step(f"e_n[n] = T.nearbyint(e_x[n] * T.float32({_LOG2_E!r}))")
    step(f"e_x[n] = e_x[n] - e_n[n] * T.float32({_LN2_HIGH!r}) - e_n[n] * T.float32({_LN2_LOW!r})")
    step(f"e_p[n] = e_x[n] * T.float32({_POLYNOMIAL[0]!r}) + T.float32({_POLYNOMIAL[1]!r})")
    for factor in _POLYNOMIAL[2:]:
        step(f"e_p[n] = e_p[n] * e_x[n] + T.float32({factor!r})")
    step("e_p[n] = e_p[n] * (e_x[n] * e_x[n]) + (e_x[n] + T.float32(1))")
    power = 'T.shift_left(T.Cast("int32", e_n[n]), 23)'  # 2^n, by adding n to the exponent
    step(
        f"{target} = T.Select({argument} < T.float32({LOWEST}), T.float32(0), "
        f'T.reinterpret("float32", T.reinterpret("int32", e_p[n]) + {power}))'
    )


def write_across(w: Writer, op: str, source: str, target: str, lanes: int) -> None:
    """Write ``target = op over all lanes of source``; ``source`` is overwritten.

    Parameters
    ----------
    op
        ``"T.max({}, {})"`` or ``"{} + {}"``.
    source
        Name of a buffer of ``lanes`` elements.
    """
    half = lanes // 2
    while half >= 1:
        with w.loops(("n", half, "vectorized" if half > 1 else "serial")):
            other = f"{source}[n + {i64(half)}]"
            w.line(f"{source}[n] = " + op.format(f"{source}[n]", other))
        half //= 2
    w.line(f"{target} = {source}[{i64(0)}]")


def write_transpose(w: Writer, square: str, lanes: int) -> None:
    """Write the transposition of a buffer of ``lanes`` vectors by exchanges between pairs.

    In the round of distance h, vectors i and i + h exchange the elements that stand h apart
    (Eklundh); log2(lanes) rounds move every element across the diagonal. ``tx`` holds a vector.
    """
    whole = f"T.Ramp({i64(0)}, {i64(1)}, {lanes})"
    distance = lanes // 2
    while distance:
        low = ", ".join(
            f"T.int32({c if not c & distance else lanes + c - distance})" for c in range(lanes)
        )
        high = ", ".join(
            f"T.int32({c + distance if not c & distance else lanes + c})" for c in range(lanes)
        )
        for i in (i for i in range(lanes) if not i & distance):
            a, b = f"{square}[{i64(i)}, {whole}]", f"{square}[{i64(i + distance)}, {whole}]"
            w.line(f"tx[{whole}] = T.Shuffle([{a}, {b}], [{low}])")
            w.line(f"{b} = T.Shuffle([{a}, {b}], [{high}])")
            w.line(f"{a} = tx[{whole}]")
        distance //= 2
