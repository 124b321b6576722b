"""Small moves on Relax that several passes share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import GenericConst, Op

from tvmfuse.graph import array_of, bindings, dtype_of, ints, op_name, shape_of

__all__ = [
    "MOVED", "array_of", "bindings", "constant", "count_uses", "dtype_of", "ints",
    "item_bytes", "mentions", "op_name", "shape_of", "stock", "value_behind",
    "with_leaves", "with_variables",
]  # fmt: skip


# Ends the name of a variable with the value of the one that is named in front, in another layout.
MOVED = "__moved"


def constant(values: np.ndarray) -> GenericConst:
    """A constant with C-contiguous ``values``."""
    return relax.const(np.ascontiguousarray(values), str(values.dtype))


def item_bytes(dtype: str) -> int:
    """Bytes of one element."""
    return {"bfloat16": 2, "bool": 1}.get(dtype) or np.dtype(dtype).itemsize


def value_behind(expr: Any, lookup: Callable[[relax.Var], Any]) -> Any:
    """What a variable stands for, through bindings of one variable to another."""
    while isinstance(expr, relax.Var):
        value = lookup(expr)
        if value is None:
            return expr
        expr = value
    return expr


def count_uses(func: relax.Function) -> dict[relax.Var, int]:
    """How often each variable of ``func`` is read."""
    uses: dict[relax.Var, int] = {}

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Var):
            uses[expr] = uses.get(expr, 0) + 1

    for binding in bindings(func):
        relax.analysis.post_order_visit(binding.value, visit)
    relax.analysis.post_order_visit(func.body.body, visit)
    return uses


def mentions(node: Any, variable: Any) -> bool:
    """Whether a statement or an expression of TIR holds a variable, a buffer among them."""
    found: list[Any] = []

    def see(other: Any) -> None:
        if other.same_as(variable):
            found.append(other)

    tvm_ffi.structural_walk(node, [(tvm.ir.Var, see)])
    return bool(found)


def stock(name: str) -> Any:
    """TVM's own legalisation of an operator."""
    return Op.get(name).get_attr("FLegalize")


def with_leaves(expr: Any, leaf: Callable[[Any], Any]) -> Any:
    """``expr`` with its variables and constants replaced by what ``leaf`` answers for them."""
    if isinstance(expr, (relax.Var, GenericConst)):
        return leaf(expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([with_leaves(f, leaf) for f in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(with_leaves(expr.tuple_value, leaf), expr.index)
    if isinstance(expr, relax.Call):
        arguments = [with_leaves(a, leaf) for a in expr.args]
        return relax.Call(expr.op, arguments, expr.attrs, expr.ty_args)
    return expr


def with_variables(expr: Any, remap: dict[relax.Var, Any]) -> Any:
    """``expr`` with its variables replaced; constants stay the same objects."""
    return with_leaves(expr, lambda e: remap[e] if isinstance(e, relax.Var) else e)
