"""Operators between dequantise and quantise work on the integers themselves.

Before: ``conv2d(dequantize(q, s, z), dequantize(W, t, 0))``
After:  ``multiply(astype(conv2d(astype(q, int32) - z, W), float32), s * t)``, the convolution of
        integers, exact; :mod:`.lower_integers` makes one kernel of it that reads bytes

Before: ``max_pool2d(dequantize(q, s, z))``         After: ``dequantize(max_pool2d(q), s, z)``
Before: ``quantize(max_pool2d(x), s, z)``           After: ``max_pool2d(quantize(x, s, z))``
Before: ``quantize(dequantize(q, s, z), s, z)``     After: ``q``
Before: ``quantize(concat(dequantize(a), dequantize(b)), s, z)``
After:  ``concat(quantize(dequantize(a), s, z), …)``, where parts of the same grid are as they are

Signed activations become unsigned ones whose zero point is 128 higher, which is what the
processor's instruction takes. What has no integer kernel is computed in float32, as the model says.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmfuse.hardware import Hardware
from tvmfuse.passes.qdq import (
    FLOAT,
    Quantised,
    Weight,
    dequantised_constant,
    dequantize,
    parameters,
    quantised,
    quantize,
    spelt_out,
    weight_of,
)
from tvmfuse.passes.relax_tools import (
    bindings,
    constant,
    count_uses,
    dtype_of,
    ints,
    op_name,
    shape_of,
    value_behind,
)
from tvmfuse.schedules.cpu.dot4 import WORD
from tvmfuse.schedules.cpu.integer import LONGEST

# They choose among elements, or move them, and so commute with dequantising.
_MOVES = frozenset(
    f"relax.{name}"
    for name in ("reshape", "permute_dims", "strided_slice", "nn.max_pool2d", "flatten", "squeeze",
                 "expand_dims")
)  # fmt: skip
_SHIFT = 128  # from int8 to uint8


@mutator
class _Integers(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._uses = {str(v.name): n for v, n in count_uses(mod["main"]).items()}
        self._unsigned: dict[str, relax.Var] = {}
        self._rewrites = {
            "relax.dequantize": self._of_unsigned,
            "relax.quantize": self._quantize,
            "relax.concat": self._concat,
            "relax.nn.conv2d": self._conv2d,
            "relax.matmul": self._matmul,
        }

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        name = op_name(call)
        rewrite = self._move if name in _MOVES else self._rewrites.get(name)
        made = None if rewrite is None else rewrite(call)
        return call if made is None else made

    def _quantised(self, expr: Any) -> Quantised | None:
        return quantised(expr, self.lookup_binding)

    def _of_unsigned(self, call: relax.Call) -> relax.Expr | None:
        q = self._quantised(call)
        if q is None or q.dtype == "uint8":
            return None
        source = self._as_unsigned(q.source)
        return dequantize(Quantised(source, q.scale, q.zero + _SHIFT, "uint8"))

    def _as_unsigned(self, source: Any) -> Any:
        """The integers of int8 plus 128, computed where they come from."""
        key = str(source.name) if isinstance(source, relax.Var) else ""
        if key in self._unsigned:
            return self._unsigned[key]
        call = value_behind(source, self.lookup_binding)
        name = op_name(call)
        if name == "relax.quantize" and parameters(call)[0].size == 1:
            scale, zero = (float(p.reshape(())) for p in parameters(call))
            made = quantize(call.args[0], scale, int(zero) + _SHIFT, "uint8")
        elif name in _MOVES:
            made = relax.Call(
                call.op, [self._as_unsigned(call.args[0]), *call.args[1:]], call.attrs
            )
        else:
            wide = self.builder_.emit(relax.op.astype(source, "int32"))
            wide = self.builder_.emit(relax.op.add(wide, relax.const(_SHIFT, "int32")))
            made = relax.op.astype(wide, "uint8")
        self._unsigned[key] = self.builder_.emit(made)
        return self._unsigned[key]

    def _move(self, call: relax.Call) -> relax.Expr | None:
        q = self._quantised(call.args[0])
        if q is None:
            return None
        moved = relax.Call(call.op, [q.source, *call.args[1:]], call.attrs, call.ty_args)
        source = self.builder_.emit(moved)
        return dequantize(Quantised(source, q.scale, q.zero, q.dtype))

    def _concat(self, call: relax.Call) -> relax.Expr | None:
        parts = [self._quantised(p) for p in self._fields(call.args[0])]
        if not parts or parts[0] is None:
            return None
        first = parts[0]
        if any(p is None or not p.same_grid(first) for p in parts):
            return None
        axis = int(call.attrs.axis)
        source = self.builder_.emit(relax.op.concat([p.source for p in parts if p], axis))
        return dequantize(Quantised(source, first.scale, first.zero, first.dtype))

    def _fields(self, expr: Any) -> list[Any]:
        found = value_behind(expr, self.lookup_binding)
        return list(found.fields) if isinstance(found, relax.Tuple) else []

    def _quantize(self, call: relax.Call) -> relax.Expr | None:
        scale, zero = parameters(call)
        if scale.size != 1 or dtype_of(call.args[0]) != FLOAT:
            return None
        grid = Quantised(None, float(scale.reshape(())), int(zero.reshape(())), dtype_of(call))
        return self._onto(call.args[0], grid)

    def _onto(self, x: Any, grid: Quantised) -> relax.Expr | None:
        """``x`` on a grid where that is not what ``quantize`` says; None for all others."""
        q = self._quantised(x)
        if q is not None and q.same_grid(grid):
            return q.source
        if q is not None and grid.dtype == "int8" and q.dtype == "uint8":
            shifted = Quantised(None, grid.scale, grid.zero + _SHIFT, "uint8")
            if q.same_grid(shifted):  # of a signed tensor that became unsigned
                wide = self.builder_.emit(relax.op.astype(q.source, "int32"))
                wide = self.builder_.emit(relax.op.subtract(wide, relax.const(_SHIFT, "int32")))
                return relax.op.astype(wide, "int8")
        call = value_behind(x, self.lookup_binding)
        name = op_name(call)
        if name == "relax.nn.max_pool2d" and self._read_once(x):
            inner = self._placed(call.args[0], grid)
            return relax.Call(call.op, [inner, *call.args[1:]], call.attrs, call.ty_args)
        if name == "relax.concat" and self._read_once(x):
            parts = self._fields(call.args[0])
            if parts and all(self._quantised(p) is not None for p in parts):
                inner = [self._placed(p, grid) for p in parts]
                return relax.op.concat(inner, int(call.attrs.axis))
        return None

    def _placed(self, x: Any, grid: Quantised) -> relax.Var:
        made = self._onto(x, grid)
        if made is None:
            made = quantize(x, grid.scale, grid.zero, grid.dtype)
        return made if isinstance(made, relax.Var) else self.builder_.emit(made)

    def _read_once(self, x: Any) -> bool:
        return isinstance(x, relax.Var) and self._uses.get(str(x.name), 0) == 1

    def _conv2d(self, call: relax.Call) -> relax.Expr | None:
        q, weight = self._quantised(call.args[0]), weight_of(call.args[1], self.lookup_binding)
        layouts = str(call.attrs.data_layout), str(call.attrs.kernel_layout)
        if q is None or weight is None or layouts != ("NCHW", "OIHW"):
            return None
        groups, shape = int(call.attrs.groups), weight.values.shape
        channels, depth = shape[0], math.prod(shape[1:])
        depthwise = shape[1] == 1 and groups == channels
        if groups > 1 and not depthwise and shape[1] % WORD:
            return None
        scale = _per_channel(weight, 0, depth)
        if scale is None:
            return None
        a = call.attrs
        product = relax.op.nn.conv2d(
            self._centred(q), constant(weight.values), ints(a.strides), ints(a.padding),
            ints(a.dilation), groups, out_dtype="int32",
        )  # fmt: skip
        return self._scaled(product, (q.scale * scale).reshape(1, -1, 1, 1))

    def _matmul(self, call: relax.Call) -> relax.Expr | None:
        q, weight = self._quantised(call.args[0]), weight_of(call.args[1], self.lookup_binding)
        rank = len(shape_of(call.args[0]) or ())
        if q is None or weight is None or weight.values.ndim != 2 or rank < 2:
            return None
        scale = _per_channel(weight, 1, weight.values.shape[0])
        if scale is None:
            return None
        product = relax.op.matmul(self._centred(q), constant(weight.values), out_dtype="int32")
        return self._scaled(product, (q.scale * scale).reshape(-1))

    def _centred(self, q: Quantised) -> relax.Expr:
        wide = self.builder_.emit(relax.op.astype(q.source, "int32"))
        if not q.zero:
            return wide
        return self.builder_.emit(relax.op.subtract(wide, relax.const(q.zero, "int32")))

    def _scaled(self, product: relax.Expr, scale: np.ndarray) -> relax.Expr:
        sums = self.builder_.emit(relax.op.astype(self.builder_.emit(product), FLOAT))
        return relax.op.multiply(sums, constant(scale.astype(np.float32)))


def _per_channel(weight: Weight, axis: int, depth: int) -> np.ndarray | None:
    """Scales of a weight by output channel, as float64; None where it has no integer kernel."""
    values, scale = weight.values, weight.scale
    others = [extent for a, extent in enumerate(scale.shape) if a != axis]
    if any(extent != 1 for extent in others) or 0 in values.shape or depth > LONGEST:
        return None
    if values.min() < -128 or values.max() > 127:
        return None
    return np.broadcast_to(scale.reshape(-1).astype(np.float64), values.shape[axis])


@mutator
class _Speller(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        name = op_name(call)
        if name == "relax.dequantize":
            found = dequantised_constant(call)
            if found is not None:
                return found
        floats = (dtype_of(call), dtype_of(call.args[0]) if call.args else "")
        if name in ("relax.quantize", "relax.dequantize") and FLOAT in floats:
            return spelt_out(call, self.builder_.emit)
        return call


def is_quantised(mod: tvm.IRModule) -> bool:
    """Whether ``main`` quantises or dequantises anything."""
    return any(
        op_name(b.value) in ("relax.quantize", "relax.dequantize") for b in bindings(mod["main"])
    )


@tvm.transform.module_pass(opt_level=0, name="IntegerOperators")
class IntegerOperators:
    """Placement: graph level, before layout conversion. Integer kernels are a CPU's only."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``; nothing changes in a model without quantised tensors."""
        if not is_quantised(mod):
            return mod
        if self._hardware.kind == "llvm":
            mod["main"] = _Integers(mod).visit_expr(mod["main"])
            mod = relax.transform.DeadCodeElimination(["main"])(mod)
        mod["main"] = _Speller(mod).visit_expr(mod["main"])
        return relax.transform.DeadCodeElimination(["main"])(mod)
