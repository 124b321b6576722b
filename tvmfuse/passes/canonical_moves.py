"""Say data movement in three words: slice, then transpose of axes that matter, then reshape.

Before: ``take(x, 2, axis=0)``                     After: ``reshape(x[2:3], …)``
Before: ``split(x, 3, axis=-1)[1]``                 After: ``x[…, n:2n]``
Before: ``permute_dims(x, p)[i:j]``                 After: ``permute_dims(x[…, i:j, …], p)``
Before: ``permute_dims(x[16, 1, 4], (1, 0, 2))``    After: ``reshape(x, (1, 16, 4))``

Slices of a merged projection thus read it straight, and transposes that only move axes of extent 1
turn out to be views. Products of few rows in many matrices become products of many rows, which
templates compute faster (a sequence in front of its batch, as ``nn.MultiheadAttention`` has it):

Before: ``matmul(x[197, 1, 768], w)``               After: ``reshape(matmul(x[197, 768], w), …)``
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmfuse.passes.cancel_transposes import BINARY, UNARY
from tvmfuse.passes.relax_tools import array_of, ints, op_name, shape_of, value_behind

# Products of fewer rows leave a part of the register tile empty.
_ROWS = 8

# What computes a transposed result as cheaply as any other.
_BEFORE_A_MOVE = UNARY | BINARY | {"relax.strided_slice"}


@mutator
class _Canonical(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        name = op_name(call)
        if name == "relax.take":
            return self._select(call)
        if name == "relax.permute_dims":
            return self._permute(call)
        if name == "relax.strided_slice":
            return self._slice(call)
        if name == "relax.matmul":
            return self._product(call)
        return call

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        item = self.visit_expr_post_order(item)
        split = self._value(item.tuple_value)
        if op_name(split) != "relax.split":
            return item
        source, shape = split.args[0], shape_of(split.args[0])
        if shape is None:
            return item
        axis = int(split.attrs.axis) % len(shape)
        widths = [shape_of_field(field)[axis] for field in split.ty.fields]
        begin = sum(widths[: item.index])
        return self._slice(_slice(source, axis, begin, begin + widths[item.index]))

    def _value(self, expr: relax.Expr) -> Any:
        return value_behind(expr, self.lookup_binding)

    def _product(self, call: relax.Call) -> relax.Expr:
        """One matrix of all rows, where there are few in each of several."""
        shape, weight = shape_of(call.args[0]), array_of(call.args[1])
        if shape is None or len(shape) < 3 or weight is None or weight.ndim != 2:
            return call
        rows = math.prod(shape[:-1])
        if not shape[-2] < _ROWS or rows == shape[-2] or 0 in shape:
            return call
        flat = self.builder_.emit(relax.op.reshape(call.args[0], (rows, shape[-1])))
        product = relax.Call(call.op, [flat, call.args[1]], call.attrs, call.ty_args)
        return relax.op.reshape(self.builder_.emit(product), (*shape[:-1], weight.shape[1]))

    def _select(self, call: relax.Call) -> relax.Expr:
        """Taking one index that is known is a slice, which fuses; a gather does not."""
        index, shape = array_of(call.args[1]), shape_of(call)
        source = shape_of(call.args[0])
        if index is None or index.ndim or call.attrs.axis is None or not source or shape is None:
            return call
        axis = int(call.attrs.axis) % len(source)
        position = int(index) % source[axis]
        row = self.builder_.emit(self._slice(_slice(call.args[0], axis, position, position + 1)))
        return relax.op.reshape(row, shape)

    def _slice(self, call: relax.Call) -> relax.Expr:
        """Slice first: less is moved, and slices of one source stay together."""
        inner = self._value(call.args[0])
        bounds = [ints(c.fields) for c in call.args[2:]]
        if op_name(inner) == "relax.permute_dims" and inner.attrs.axes is not None:
            order = ints(inner.attrs.axes)
            axes = [order[a] for a in ints(call.args[1].fields)]
            thin = self._slice(relax.op.strided_slice(inner.args[0], axes, *bounds))
            return self._permute(relax.op.permute_dims(self.builder_.emit(thin), list(order)))
        if op_name(inner) == "relax.reshape":
            return self._slice_before_reshape(call, inner)
        return call

    def _slice_before_reshape(self, call: relax.Call, reshape: relax.Call) -> relax.Expr:
        """Past a reshape that only adds or drops axes of extent 1."""
        wide, shape = shape_of(reshape.args[0]), shape_of(reshape)
        call = self.builder_.normalize(call)
        result, axes = shape_of(call), ints(call.args[1].fields)
        if wide is None or shape is None or result is None or any(shape[a] == 1 for a in axes):
            return call
        real, source = ([i for i, e in enumerate(s) if e != 1] for s in (shape, wide))
        if [shape[i] for i in real] != [wide[i] for i in source]:
            return call
        moved = [source[real.index(a)] for a in axes]
        bounds = [ints(c.fields) for c in call.args[2:]]
        thin = self._slice(relax.op.strided_slice(reshape.args[0], moved, *bounds))
        return relax.op.reshape(self.builder_.emit(thin), result)

    def _permute(self, call: relax.Call) -> relax.Expr:
        """Transpose without the axes of extent 1, of which the order does not matter."""
        call = self.builder_.normalize(call)
        source, shape = shape_of(call.args[0]), shape_of(call)
        if source is None or shape is None or call.attrs.axes is None or 1 not in source:
            return call
        kept = [a for a in ints(call.attrs.axes) if source[a] != 1]
        if kept == sorted(kept):
            return relax.op.reshape(call.args[0], shape)
        behind = self._value(call.args[0])
        if len(kept) > 4 or op_name(behind) in _BEFORE_A_MOVE:
            return call  # a view would stand between it and the kernel in front
        rank = {axis: i for i, axis in enumerate(sorted(kept))}
        thin = self.builder_.emit(relax.op.reshape(call.args[0], [source[a] for a in sorted(kept)]))
        moved = self.builder_.emit(relax.op.permute_dims(thin, [rank[a] for a in kept]))
        return relax.op.reshape(moved, shape)


def shape_of_field(field: Any) -> tuple[int, ...]:
    """Static shape of one field of a tuple type."""
    return tuple(int(extent.value) for extent in field.shape.values)


def _slice(source: relax.Expr, axis: int, begin: int, end: int) -> relax.Call:
    return relax.op.strided_slice(source, axes=[axis], begin=[begin], end=[end])


@tvm.transform.module_pass(opt_level=0, name="CanonicalMoves")
class CanonicalMoves:
    """Placement: graph level, behind layout conversion (which knows split, not its slices)."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        mod["main"] = _Canonical(mod).visit_expr(mod["main"])
        return mod
