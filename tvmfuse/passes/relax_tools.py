"""Small moves on Relax that several passes share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst, Op


def op_name(expr: Any) -> str:
    """Name of the called operator, e.g. ``"relax.nn.conv2d"``; empty for anything else."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, Op):
        return str(expr.op.name)
    return ""


def array_of(expr: Any) -> np.ndarray | None:
    """The values of a constant; None for anything else."""
    return expr.value.numpy() if isinstance(expr, GenericConst) else None


def constant(values: np.ndarray) -> GenericConst:
    """A constant with C-contiguous ``values``."""
    return relax.const(np.ascontiguousarray(values), str(values.dtype))


def shape_of(expr: Any) -> tuple[int, ...] | None:
    """Static shape of a tensor expression; None when any extent is symbolic or unknown."""
    shape = getattr(expr.ty, "shape", None)
    if shape is None or not hasattr(shape, "values"):
        return None
    extents = [getattr(v, "value", None) for v in shape.values]
    known = tuple(int(v) for v in extents if v is not None)
    return known if len(known) == len(extents) else None


def dtype_of(expr: Any) -> str:
    """Element type of a tensor expression; empty for anything else."""
    return str(getattr(expr.ty, "dtype", "") or "")


def ints(values: Any) -> tuple[int, ...]:
    """Plain integers of an attribute array."""
    return tuple(int(v) for v in values)


def bindings(func: relax.Function) -> list[relax.VarBinding]:
    """All bindings of a function in order."""
    return [b for block in func.body.blocks for b in block.bindings]


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
