"""Remove operators that do nothing, call all views reshape, pooling over the whole image a mean.

Before: ``adaptive_avg_pool2d(x, (7, 7))`` on a 7x7 image      After: ``x``
Before: ``adaptive_avg_pool2d(x, (1, 1))``                      After: ``mean(x, [H, W], keepdims)``
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmfuse.passes.relax_tools import dtype_of, ints, op_name, shape_of

_RESHAPES = ("relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims")


@mutator
class _Simplifier(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        name = op_name(call)
        if name == "relax.nn.adaptive_avg_pool2d":
            return self._adaptive_pool(call)
        if name == "relax.permute_dims" and call.attrs.axes is not None:
            axes = ints(call.attrs.axes)
            return call.args[0] if axes == tuple(range(len(axes))) else call
        if name in _RESHAPES and shape_of(call) is not None:
            shape = shape_of(call)
            if shape == shape_of(call.args[0]):
                return call.args[0]
            # One name for all views: ConvertLayout fails on squeezes with negative axes.
            return call if name == "relax.reshape" else relax.op.reshape(call.args[0], shape)
        if name == "relax.astype" and dtype_of(call) == dtype_of(call.args[0]):
            return call.args[0]
        return call

    def _adaptive_pool(self, call: relax.Call) -> relax.Expr:
        source, target = shape_of(call.args[0]), shape_of(call)
        if source is None or target is None:
            return call
        if source == target:
            return call.args[0]
        spatial = [i for i, axis in enumerate(str(call.attrs.layout)) if axis in "HW"]
        if all(target[i] == 1 for i in spatial):
            return relax.op.mean(call.args[0], axis=spatial, keepdims=True)
        return call


@tvm.transform.module_pass(opt_level=0, name="Simplify")
class Simplify:
    """Placement: graph level, before and after layout conversion."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        mod["main"] = _Simplifier(mod).visit_expr(mod["main"])
        return mod
