"""Lower variance, group norm and instance norm so that a large offset costs no digits.

TVM takes the variance as E[x²] − E[x]², or around a rounded mean: inputs near 80000 leave nothing
of it, and a negative variance gives NaN. Here each row (what shares one mean) is shifted by its
first element, and the variance is taken around the mean in a second pass: as
`tvmfuse.passes.lower_numerics` does for layer norm. Long sums are taken in blocks
(`tvmfuse.precision.accumulation`).

Rows that are contiguous in memory become one kernel; others (channels last) become three, the last
of which is element-wise and merges with what follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx, topi

from tvmfuse.passes.relax_tools import dtype_of, ints, shape_of, stock
from tvmfuse.precision.accumulation import block_extents

Index = tuple[Any, ...]


@dataclass(frozen=True)
class Rows:
    """How a tensor splits into rows that share their moments.

    Parameters
    ----------
    rows, inner
        Extents of the axes that number the rows, and of the axes along one.
    element
        Index into the tensor, from an index of the row and one along it.
    row
        Index of the row, from an index into the tensor.
    dtype
        Element type; NumPy's name.
    """

    rows: tuple[int, ...]
    inner: tuple[int, ...]
    element: Callable[[Index, Index], Index]
    row: Callable[[Index], Index]
    dtype: str

    @property
    def count(self) -> int:
        """Elements of one row."""
        return math.prod(self.inner)

    def shifted(self, x: te.Tensor, r: Index, i: Index) -> Any:
        """Element ``i`` of row ``r`` less the row's first."""
        return x(*self.element(r, i)) - x(*self.element(r, (0,) * len(self.inner)))

    def sum(self, term: Callable[[Index, Index], Any], name: str) -> te.Tensor:
        """Sum of ``term`` along each row, in blocks where it is long."""
        outer, inner = block_extents(self.inner, self.dtype)
        k = [te.reduce_axis((0, e), f"{name}_k{d}") for d, e in enumerate(inner)]
        if not outer:
            return te.compute(self.rows, lambda *r: te.sum(term(r, tuple(k)), axis=k), name)
        q = [te.reduce_axis((0, e), f"{name}_q{d}") for d, e in enumerate(outer)]
        n = len(self.rows)
        blocks = te.compute(
            (*self.rows, *outer),
            lambda *i: te.sum(term(i[:n], (*i[n:], *k)), axis=k),
            f"{name}_blocks",
        )
        return te.compute(self.rows, lambda *r: te.sum(blocks(*r, *q), axis=q), name)

    def total(self, x: te.Tensor) -> te.Tensor:
        """Sum of each shifted row."""
        return self.sum(lambda r, i: self.shifted(x, r, i), "total")

    def centred(self, x: te.Tensor, total: te.Tensor, r: Index, i: Index) -> Any:
        """Element ``i`` of row ``r`` less the row's mean."""
        return self.shifted(x, r, i) - total(*r) * tirx.const(1.0 / self.count, self.dtype)

    def spread(self, x: te.Tensor, total: te.Tensor) -> te.Tensor:
        """Sum of squares of each centred row."""

        def square(r: Index, i: Index) -> Any:
            value = self.centred(x, total, r, i)
            return value * value

        return self.sum(square, "spread")


def along(shape: tuple[int, ...], reduced: tuple[int, ...], dtype: str) -> Rows:
    """Rows along the axes ``reduced``; all others number them."""
    kept = tuple(d for d in range(len(shape)) if d not in reduced)

    def element(r: Index, i: Index) -> Index:
        found = dict(zip(kept, r, strict=True)) | dict(zip(reduced, i, strict=True))
        return tuple(found[d] for d in range(len(shape)))

    return Rows(
        tuple(shape[d] for d in kept),
        tuple(shape[d] for d in reduced),
        element,
        lambda at: tuple(at[d] for d in kept),
        dtype,
    )


def grouped(
    shape: tuple[int, ...], axis: int, spatial: tuple[int, ...], groups: int, dtype: str
) -> Rows:
    """Rows of group norm: (batch …, group), along the group's channels and ``spatial``."""
    each = shape[axis] // groups
    batch = tuple(d for d in range(len(shape)) if d != axis and d not in spatial)
    # The innermost axis in memory is summed innermost.
    last = axis > max(spatial, default=-1)
    order = (*spatial, axis) if last else (axis, *spatial)

    def element(r: Index, i: Index) -> Index:
        found = dict(zip(batch, r[:-1], strict=True)) | dict(zip(order, i, strict=True))
        found[axis] = r[-1] * each + found[axis]
        return tuple(found[d] for d in range(len(shape)))

    return Rows(
        (*(shape[d] for d in batch), groups),
        tuple(each if d == axis else shape[d] for d in order),
        element,
        lambda at: (*(at[d] for d in batch), tirx.floordiv(at[axis], each)),
        dtype,
    )


def _variance(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    shape, result = shape_of(call.args[0]), shape_of(call)
    axis = call.attrs.axis
    if not _ours(call, shape) or result is None or shape is None:
        return stock("relax.variance")(bb, call)
    rank = len(shape)
    reduced = tuple(range(rank)) if axis is None else tuple(sorted(a % rank for a in ints(axis)))
    rows = along(shape, reduced, dtype_of(call))
    kept = [d for d in range(rank) if d not in reduced]

    def scaled(x: te.Tensor, total: te.Tensor) -> te.Tensor:
        spread = rows.spread(x, total)
        factor = tirx.const(1.0 / rows.count, rows.dtype)

        def body(*at: Any) -> Any:
            r = [at[d] for d in kept] if call.attrs.keepdims else at
            return spread(*r) * factor

        return te.compute(result, body, "variance")

    def together(x: te.Tensor) -> te.Tensor:
        return scaled(x, rows.total(x))

    x = call.args[0]
    if reduced == tuple(range(rank - len(reduced), rank)):
        return bb.call_te(together, x, primfunc_name_hint="variance")
    total = bb.emit(bb.call_te(rows.total, x, primfunc_name_hint="total"))
    return bb.call_te(scaled, x, total, primfunc_name_hint="variance")


def _group_norm(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    shape, attrs = shape_of(call), call.attrs
    if not _ours(call, shape) or shape is None:
        return stock("relax.nn.group_norm")(bb, call)
    rank, groups = len(shape), int(attrs.num_groups)
    axis = int(attrs.channel_axis) % rank
    spatial = tuple(sorted(a % rank for a in ints(attrs.axes)))
    if (axis, *spatial) != tuple(range(axis, rank)):
        return _normalised(bb, call, grouped(shape, axis, spatial, groups, dtype_of(call)), axis)
    # The group's channels and pixels lie side by side: a row of a view.
    each, pixels = shape[axis] // groups, math.prod(shape[axis + 1 :])
    view = (*shape[:axis], groups, each, pixels)
    rows = along(view, (axis + 1, axis + 2), dtype_of(call))
    return _as_rows(bb, call, view, rows, lambda at: at[axis] * each + at[axis + 1])


def _instance_norm(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    shape, attrs = shape_of(call), call.attrs
    if not _ours(call, shape) or shape is None:
        return stock("relax.nn.instance_norm")(bb, call)
    rank = len(shape)
    axis = int(attrs.channel_axis) % rank
    reduced = tuple(sorted({a % rank for a in ints(attrs.axes)} - {axis}))
    wide = tuple(d for d in reduced if shape[d] > 1)  # along the others there is nothing to sum
    if not wide or wide[0] != axis + 1 or wide[-1] != rank - 1:
        return _normalised(bb, call, along(shape, reduced, dtype_of(call)), axis)
    view = (*shape[: axis + 1], math.prod(shape[axis + 1 :]))
    rows = along(view, (axis + 1,), dtype_of(call))
    return _as_rows(bb, call, view, rows, lambda at: at[axis])


def _as_rows(
    bb: relax.BlockBuilder,
    call: relax.Call,
    view: tuple[int, ...],
    rows: Rows,
    channel: Callable[[Index], Any],
) -> relax.Expr:
    """One kernel over a view of the input whose rows are contiguous."""

    def compute(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
        total = rows.total(x)
        spread = rows.spread(x, total)
        body = _affine(rows, x, total, spread, gamma, beta, channel, call)
        return te.compute(view, body, "norm")

    x, gamma, beta = call.args
    hint = str(call.op.name).rpartition(".")[2]
    wide = bb.emit(bb.call_te(topi.reshape, x, view, primfunc_name_hint="reshape"))
    done = bb.emit(bb.call_te(compute, wide, gamma, beta, primfunc_name_hint=hint))
    return bb.call_te(topi.reshape, done, shape_of(call), primfunc_name_hint="reshape")


def _normalised(bb: relax.BlockBuilder, call: relax.Call, rows: Rows, axis: int) -> relax.Expr:
    """Two kernels for the moments, and one that is element-wise."""
    x, gamma, beta = call.args
    total = bb.emit(bb.call_te(rows.total, x, primfunc_name_hint="total"))
    spread = bb.emit(bb.call_te(rows.spread, x, total, primfunc_name_hint="spread"))

    def compute(*args: te.Tensor) -> te.Tensor:
        data, total_, spread_, gamma_, beta_ = args
        body = _affine(rows, data, total_, spread_, gamma_, beta_, lambda at: at[axis], call)
        return te.compute(data.shape, body, "norm")

    hint = str(call.op.name).rpartition(".")[2]
    return bb.call_te(compute, x, total, spread, gamma, beta, primfunc_name_hint=hint)


def _affine(
    rows: Rows,
    x: te.Tensor,
    total: te.Tensor,
    spread: te.Tensor,
    gamma: te.Tensor,
    beta: te.Tensor,
    channel: Callable[[Index], Any],
    call: relax.Call,
) -> Callable[..., Any]:
    """The element-wise end of a norm, as a function of the index."""
    epsilon = float(call.attrs.epsilon)
    factor = tirx.const(1.0 / rows.count, rows.dtype)

    def body(*at: Any) -> Any:
        r, c = rows.row(at), channel(at)
        first = rows.element(r, (0,) * len(rows.inner))
        centred = (x(*at) - x(*first)) - total(*r) * factor
        scale = tirx.rsqrt(spread(*r) * factor + tirx.const(epsilon, rows.dtype))
        value = centred * scale
        value = value * gamma(c) if call.attrs.scale else value
        return value + beta(c) if call.attrs.center else value

    return body


def _ours(call: relax.Call, shape: tuple[int, ...] | None) -> bool:
    inputs = [dtype_of(a) for a in call.args]
    return bool(shape) and 0 not in (shape or ()) and set(inputs) <= {"float32", "float64"}


def legalize_map() -> dict[str, Any]:
    """Custom legalisations for ``relax.transform.LegalizeOps``."""
    return {
        "relax.variance": _variance,
        "relax.nn.group_norm": _group_norm,
        "relax.nn.instance_norm": _instance_norm,
    }
