"""Move transposes behind element-wise operators and cancel those that meet.

TVM's ConvertLayout does not know every element-wise operator (clip, erf, …) and puts a pair of
transposes around each: this pass lets the first one sink until it meets its inverse.

Before: ``permute_dims(clip(permute_dims(x, p)), p⁻¹)``      After: ``clip(x)``
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmfuse.passes.relax_tools import MOVED, array_of, constant, ints, op_name, value_behind

UNARY = {
    f"relax.{name}"
    for name in (
        *("abs", "ceil", "clip", "cos", "erf", "exp", "floor", "log", "negative", "round"),
        *("rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "tanh", "astype", "nn.gelu"),
        *("nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.relu6", "nn.silu", "nn.softplus"),
    )
}
BINARY = {
    f"relax.{name}"
    for name in ("add", "divide", "maximum", "minimum", "multiply", "power", "subtract")
}


@mutator
class _Sinker(PyExprMutator):
    _name = ""

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._name = str(binding.var.name)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        name = op_name(call)
        if name == "relax.permute_dims":
            return self._compose(call)
        if name == "relax.strided_slice":
            return self._slice(call)
        if name in UNARY:
            return self._sink(call, [call.args[0]])
        if name in BINARY:
            return self._sink(call, [a for a in call.args if not _is_scalar(a)])
        return call

    def _compose(self, call: relax.Call) -> relax.Expr:
        inner = self._transpose_behind(call.args[0])
        if inner is None or call.attrs.axes is None:
            return call
        axes = [inner[1][a] for a in ints(call.attrs.axes)]
        if axes == sorted(axes):
            return inner[0]
        return relax.op.permute_dims(inner[0], axes)

    def _slice(self, call: relax.Call) -> relax.Expr:
        """``permute(x)[a:b]`` becomes ``permute(x[…, a:b, …])``."""
        behind = self._transpose_behind(call.args[0])
        if behind is None:
            return call
        source, order = behind
        axes = [order[a] for a in ints(call.args[1].fields)]
        bounds = [ints(c.fields) for c in call.args[2:]]
        thin = self.builder_.emit(relax.op.strided_slice(source, axes, *bounds), self._name + MOVED)
        return relax.op.permute_dims(thin, list(order))

    def _sink(self, call: relax.Call, tensors: list[relax.Expr]) -> relax.Expr:
        """``f(permute(x), …)`` becomes ``permute(f(x, …))`` when all tensors agree on it.

        A constant agrees with any order: it is transposed here and now.
        """
        moving = [t for t in tensors if array_of(t) is None]
        found = [self._transpose_behind(t) for t in moving]
        if not found or any(f is None for f in found):
            return call
        sources, orders = zip(*(f for f in found if f is not None), strict=True)
        if any(order != orders[0] for order in orders):
            return call
        plain = iter(sources)
        arguments = []
        for argument in call.args:
            if any(argument.same_as(t) for t in moving):
                argument = next(plain)
            elif any(argument.same_as(t) for t in tensors):
                argument = _transposed(array_of(argument), orders[0])
            arguments.append(argument)
        moved = relax.Call(call.op, arguments, call.attrs, call.ty_args)
        inner = self.builder_.emit(moved, self._name + MOVED)
        return relax.op.permute_dims(inner, list(orders[0]))

    def _transpose_behind(self, expr: relax.Expr) -> tuple[relax.Expr, tuple[int, ...]] | None:
        value = value_behind(expr, self.lookup_binding)
        if op_name(value) != "relax.permute_dims" or value.attrs.axes is None:
            return None
        return value.args[0], ints(value.attrs.axes)


def _transposed(values: Any, order: tuple[int, ...]) -> relax.Expr:
    """The constant whose transpose by ``order`` is ``values``, broadcast to its rank."""
    wide = values.reshape((1,) * (len(order) - values.ndim) + values.shape)
    return constant(np.transpose(wide, np.argsort(order)))


def _is_scalar(expr: Any) -> bool:
    values = array_of(expr)
    return values is not None and values.ndim == 0


@tvm.transform.module_pass(opt_level=0, name="CancelTransposes")
class CancelTransposes:
    """Placement: graph level, right after layout conversion."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        mod["main"] = _Sinker(mod).visit_expr(mod["main"])
        return mod
