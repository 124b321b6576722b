"""Split an axis in front of a transpose instead of behind it.

The transpose then meets the next one, and element-wise operators between them join the kernel in
front: detection heads split channels into anchors and classes right behind a change of layout.

Before: ``reshape(permute_dims(x[1, H, W, A·K], (0, 3, 1, 2)), (1, A, K, H, W))``
After:  ``permute_dims(reshape(x, (1, H, W, A, K)), (0, 3, 4, 1, 2))``
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmfuse.passes.relax_tools import ints, op_name, shape_of, value_behind
from tvmfuse.schedules.strides import split_axes


@mutator
class _Hoister(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if op_name(call) != "relax.reshape":
            return call
        inner, shape = value_behind(call.args[0], self.lookup_binding), shape_of(call)
        wide = shape_of(call.args[0])
        if op_name(inner) != "relax.permute_dims" or inner.attrs.axes is None:
            return call
        groups = split_axes(wide, shape) if wide is not None and shape is not None else None
        if groups is None or shape is None or all(len(g) < 2 for g in groups):
            return call
        order = ints(inner.attrs.axes)
        behind = dict(zip(order, groups, strict=True))
        placed = [a for axis in sorted(behind) for a in behind[axis]]
        thin = self.builder_.emit(relax.op.reshape(inner.args[0], [shape[a] for a in placed]))
        return relax.op.permute_dims(thin, [placed.index(a) for a in range(len(shape))])


@tvm.transform.module_pass(opt_level=0, name="HoistSplits")
class HoistSplits:
    """Placement: graph level, between layout conversion and the passes that move transposes."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        mod["main"] = _Hoister(mod).visit_expr(mod["main"])
        return mod
