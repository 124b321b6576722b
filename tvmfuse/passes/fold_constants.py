"""Evaluate layout operators on constants with NumPy.

TVM's own FoldConstant compiles every folded expression, which costs seconds on a model's weights.

Before: ``permute_dims(const_OIHW, [0, 2, 3, 1])``      After: ``const_OHWI``
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmfuse.passes.relax_tools import array_of, constant, ints, op_name, shape_of


def _permute(call: Any, x: np.ndarray) -> np.ndarray:
    return np.transpose(x, ints(call.attrs.axes) if call.attrs.axes is not None else None)


def _reshape(call: Any, x: np.ndarray) -> np.ndarray | None:
    shape = shape_of(call)
    return None if shape is None else x.reshape(shape)


_EVALUATE: dict[str, Callable[[Any, np.ndarray], np.ndarray | None]] = {
    "relax.permute_dims": _permute,
    "relax.reshape": _reshape,
    "relax.expand_dims": _reshape,
    "relax.squeeze": _reshape,
    "relax.flatten": _reshape,
}


@mutator
class _Folder(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        evaluate = _EVALUATE.get(op_name(call))
        if evaluate is None:
            return call
        argument = call.args[0]
        if isinstance(argument, relax.Var):
            argument = self.lookup_binding(argument)
        values = array_of(argument) if argument is not None else None
        result = evaluate(call, values) if values is not None else None
        return call if result is None else constant(result)


@tvm.transform.module_pass(opt_level=0, name="FoldConstants")
class FoldConstants:
    """Placement: after layout conversion, before legalisation."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        mod["main"] = _Folder(mod).visit_expr(mod["main"])
        return mod
