"""Move reshapes behind element-wise operators, so that these join the kernel in front.

A reshape is a view and costs nothing, but no kernel grows across it.

Before: ``add(reshape(add(dense(x), b), s), y)``
After:  ``reshape(add(add(dense(x), b), reshape(y)), s)``, the inner reshape again a view
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmfuse.passes.cancel_transposes import BINARY, UNARY
from tvmfuse.passes.relax_tools import (
    MOVED,
    array_of,
    bindings,
    constant,
    count_uses,
    op_name,
    shape_of,
    value_behind,
)

Shape = tuple[int, ...]


@mutator
class _Sinker(PyExprMutator):
    _name = ""

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._name = str(binding.var.name)
        super().visit_var_binding_(binding)

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._uses = count_uses(mod["main"])
        self._values = {b.var: b.value for b in bindings(mod["main"])}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        name = op_name(call)
        tensors = 1 if name in UNARY else 2 if name in BINARY else 0
        alone = [self._read_once(a) for a in call.args[:tensors]]
        call = self.visit_expr_post_order(call)
        if name == "relax.reshape":
            return self._compose(call)
        return self._sink(call, alone) if any(alone) else call

    def _read_once(self, operand: relax.Expr) -> bool:
        """Whether ``operand`` is a reshape of a value that nobody else reads: it can be joined."""
        reshape = self._values.get(operand) if isinstance(operand, relax.Var) else None
        if reshape is None or op_name(reshape) != "relax.reshape" or self._uses[operand] > 1:
            return False
        return self._uses.get(reshape.args[0], 0) == 1

    def _compose(self, call: relax.Call) -> relax.Expr:
        inner, shape = self._reshape_behind(call.args[0]), shape_of(call)
        if inner is None or shape is None:
            return call
        return inner if shape_of(inner) == shape else relax.op.reshape(inner, shape)

    def _sink(self, call: relax.Call, alone: list[bool]) -> relax.Expr:
        shape, tensors = shape_of(call), len(alone)
        for operand in (a for a, once in zip(call.args, alone, strict=False) if once):
            source = self._reshape_behind(operand)
            if source is None or shape is None or shape_of(operand) != shape:
                continue
            space = shape_of(source)
            kernel = value_behind(source, self.lookup_binding)
            if space is None or not isinstance(kernel, relax.Call):
                continue  # in front of it stands no kernel to join
            operands = [
                source if o.same_as(operand) else self._into(o, shape, space)
                for o in call.args[:tensors]
            ]
            if any(o is None for o in operands):
                continue
            arguments = [*operands, *call.args[tensors:]]
            moved = relax.Call(call.op, arguments, call.attrs, call.ty_args)
            inner = self.builder_.emit(moved, self._name + MOVED)
            return relax.op.reshape(inner, shape)
        return call

    def _into(self, operand: relax.Expr, shape: Shape, space: Shape) -> relax.Expr | None:
        """``operand``, which broadcasts to ``shape``, as one that broadcasts to ``space``."""
        own, values = shape_of(operand), array_of(operand)
        if own is None:
            return None
        if values is not None:
            if values.size == 1:
                return constant(values.reshape(()))
            if own == shape:
                return constant(values.reshape(space))
            # A vector along the last axis, if that axis is the same on both sides.
            if values.size == own[-1] == space[-1]:
                return constant(values.reshape(-1))
            return None
        if own != shape:
            return None
        behind = self._reshape_behind(operand)
        if behind is not None and shape_of(behind) == space:
            return behind
        return self.builder_.emit(relax.op.reshape(operand, space))

    def _reshape_behind(self, expr: relax.Expr) -> relax.Expr | None:
        """What ``expr`` is a reshape of."""
        value = value_behind(expr, self.lookup_binding)
        return value.args[0] if op_name(value) == "relax.reshape" else None


@tvm.transform.module_pass(opt_level=0, name="SinkReshapes")
class SinkReshapes:
    """Placement: graph level, behind the last pass that adds reshapes."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        mod["main"] = _Sinker(mod).visit_expr(mod["main"])
        return mod
