"""Lower norms, means, variances and softmax with compensated sums (``--accumulation compensated``).

Mean and variance by the corrected two-pass algorithm (Chan, Golub and LeVeque 1983): a first sum
gives a mean m that may have lost its last digits; the deviations x − m are exact where it matters,
and the mean of the deviations is what m lost. The default (`tvmfuse.passes.lower_moments`) shifts a
row by its first element instead, which is one pass less and fails where that element is an outlier.

All sums are taken in blocks whose sums are then added (pairwise summation of two levels): n in the
bound of the error becomes the length of a block plus their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from tvmfuse.passes.lower_moments import Rows, along, grouped
from tvmfuse.passes.relax_tools import dtype_of, ints, shape_of, stock
from tvmfuse.precision.accumulation import split

_TYPES = frozenset(("float32", "float64"))
Index = tuple[Any, ...]


def _sum(rows: Rows, term: Callable[[Index, Index], Any], name: str) -> te.Tensor:
    """Sum of ``term`` along each row, in blocks of the row's elements in order."""
    n = len(rows.rows)
    blocks, length = split(rows.count)

    def at(r: Index, flat: Any) -> Any:
        index = []
        for extent in reversed(rows.inner):
            index.append(tirx.floormod(flat, extent))
            flat = tirx.floordiv(flat, extent)
        return term(r, tuple(reversed(index)))

    k = te.reduce_axis((0, length), f"{name}_k")
    if blocks == 1:
        return te.compute(rows.rows, lambda *r: te.sum(at(r, k), axis=k), name)

    def guarded(r: Index, flat: Any) -> Any:
        if rows.count % length == 0:
            return at(r, flat)
        inside = tirx.min(flat, rows.count - 1)
        return tirx.if_then_else(flat < rows.count, at(r, inside), tirx.const(0, rows.dtype))

    q = te.reduce_axis((0, blocks), f"{name}_q")
    partial = te.compute(
        (*rows.rows, blocks),
        lambda *i: te.sum(guarded(i[:n], i[n] * length + k), axis=k),
        f"{name}_blocks",
    )
    return te.compute(rows.rows, lambda *r: te.sum(partial(*r, q), axis=q), name)


class _Moments:
    """Mean in two parts, and the sum of squares around it."""

    def __init__(self, rows: Rows, x: te.Tensor) -> None:
        self.rows, self.x = rows, x
        self._share = tirx.const(1.0 / rows.count, rows.dtype)
        total = _sum(rows, lambda r, i: x(*rows.element(r, i)), "total")
        self.rough = te.compute(rows.rows, lambda *r: total(*r) * self._share, "rough")
        lost = _sum(rows, lambda r, i: x(*rows.element(r, i)) - self.rough(*r), "lost")
        self.rest = te.compute(rows.rows, lambda *r: lost(*r) * self._share, "rest")

    def mean(self, r: Index) -> Any:
        """Mean of row ``r``."""
        return self.rough(*r) + self.rest(*r)

    def centred(self, value: Any, r: Index) -> Any:
        """A value of row ``r`` less the row's mean."""
        return (value - self.rough(*r)) - self.rest(*r)

    def variance(self) -> te.Tensor:
        """Mean square around the mean."""

        def square(r: Index, i: Index) -> Any:
            value = self.centred(self.x(*self.rows.element(r, i)), r)
            return value * value

        spread = _sum(self.rows, square, "spread")
        return te.compute(self.rows.rows, lambda *r: spread(*r) * self._share, "variance")


def _layer_norm(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    shape = shape_of(call)
    if not _ours(call) or shape is None:
        return stock("relax.nn.layer_norm")(bb, call)
    axes = tuple(sorted(a % len(shape) for a in ints(call.attrs.axes)))
    return _norm(bb, call, along(shape, axes, dtype_of(call)), axes)


def _group_norm(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    shape, attrs = shape_of(call), call.attrs
    if not _ours(call) or shape is None:
        return stock("relax.nn.group_norm")(bb, call)
    axis = int(attrs.channel_axis) % len(shape)
    spatial = tuple(sorted(a % len(shape) for a in ints(attrs.axes)))
    rows = grouped(shape, axis, spatial, int(attrs.num_groups), dtype_of(call))
    return _norm(bb, call, rows, (axis,))


def _instance_norm(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    shape, attrs = shape_of(call), call.attrs
    if not _ours(call) or shape is None:
        return stock("relax.nn.instance_norm")(bb, call)
    axis = int(attrs.channel_axis) % len(shape)
    reduced = tuple(sorted({a % len(shape) for a in ints(attrs.axes)} - {axis}))
    return _norm(bb, call, along(shape, reduced, dtype_of(call)), (axis,))


def _norm(
    bb: relax.BlockBuilder, call: relax.Call, rows: Rows, affine: tuple[int, ...]
) -> relax.Expr:
    """Normalise rows; gamma and beta are indexed by the axes ``affine``."""
    attrs, epsilon = call.attrs, tirx.const(float(call.attrs.epsilon), rows.dtype)

    def compute(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
        moments = _Moments(rows, x)
        variance = moments.variance()

        def body(*at: Any) -> Any:
            r, place = rows.row(at), tuple(at[a] for a in affine)
            value = moments.centred(x(*at), r) * tirx.rsqrt(variance(*r) + epsilon)
            value = value * gamma(*place) if attrs.scale else value
            return value + beta(*place) if attrs.center else value

        return te.compute(x.shape, body, "norm")

    hint = str(call.op.name).rpartition(".")[2]
    return bb.call_te(compute, *call.args, primfunc_name_hint=hint)


def _reduced(name: str) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
    """Lowering of ``relax.mean`` or ``relax.variance``."""

    def lower(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        shape, result, axis = shape_of(call.args[0]), shape_of(call), call.attrs.axis
        if not _ours(call) or shape is None or result is None:
            return stock(f"relax.{name}")(bb, call)
        rank = len(shape)
        axes = tuple(range(rank)) if axis is None else tuple(sorted(a % rank for a in ints(axis)))
        rows = along(shape, axes, dtype_of(call))
        kept = [d for d in range(rank) if d not in axes]

        def compute(x: te.Tensor) -> te.Tensor:
            moments = _Moments(rows, x)
            variance = moments.variance() if name == "variance" else None

            def body(*at: Any) -> Any:
                r = tuple(at[d] for d in kept) if call.attrs.keepdims else at
                return moments.mean(r) if variance is None else variance(*r)

            return te.compute(result, body, name)

        return bb.call_te(compute, call.args[0], primfunc_name_hint=name)

    return lower


def _softmax(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    shape = shape_of(call)
    if not _ours(call) or shape is None:
        return stock("relax.nn.softmax")(bb, call)
    axis = int(call.attrs.axis) % len(shape)
    rows = along(shape, (axis,), dtype_of(call))

    def compute(x: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, shape[axis]), "k")
        top = te.compute(rows.rows, lambda *r: te.max(x(*rows.element(r, (k,))), axis=k), "top")
        power = te.compute(shape, lambda *i: tirx.exp(x(*i) - top(*rows.row(i))), "power")
        total = _sum(rows, lambda r, i: power(*rows.element(r, i)), "total")
        return te.compute(shape, lambda *i: power(*i) / total(*rows.row(i)), "softmax")

    return bb.call_te(compute, call.args[0], primfunc_name_hint="softmax")


def _ours(call: relax.Call) -> bool:
    shape = shape_of(call.args[0])
    types = {dtype_of(a) for a in call.args if shape_of(a) is not None}
    return bool(shape) and 0 not in (shape or ()) and math.prod(shape or ()) > 0 and types <= _TYPES


def legalize_map() -> dict[str, Any]:
    """Custom legalisations for ``relax.transform.LegalizeOps``."""
    return {
        "relax.nn.layer_norm": _layer_norm,
        "relax.nn.group_norm": _group_norm,
        "relax.nn.instance_norm": _instance_norm,
        "relax.nn.softmax": _softmax,
        "relax.mean": _reduced("mean"),
        "relax.variance": _reduced("variance"),
    }
