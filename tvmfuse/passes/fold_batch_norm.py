"""Fold batch norm into the convolution or product in front of it; elsewhere into scale and shift.

    W' = W · γ/σ        b' = (b − μ) · γ/σ + β        σ = sqrt(var + ε)

computed in float64 with NumPy. The bias of the convolution itself (an add of a constant) is
folded along. A batch norm behind anything else becomes ``x · s + t`` with constant s and t.

Before: ``batch_norm(conv2d(x, W), γ, β, μ, var)[0]``   After: ``add(conv2d(x, W'), b')``
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmfuse.passes.relax_tools import array_of, constant, count_uses, op_name, shape_of


@mutator
class _Folder(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, uses: dict[str, int]) -> None:
        super().__init__(mod)
        self.uses = uses

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        source = self.visit_expr(item.tuple_value)
        norm = self.lookup_binding(source) if isinstance(source, relax.Var) else source
        if op_name(norm) != "relax.nn.batch_norm" or int(item.index) != 0:
            return relax.TupleGetItem(source, item.index)
        folded = self._fold(norm)
        return relax.TupleGetItem(source, item.index) if folded is None else folded

    def _fold(self, norm: relax.Call) -> relax.Expr | None:
        attrs = norm.attrs
        arrays = [array_of(a) for a in norm.args[1:5]]
        if any(a is None for a in arrays) or bool(attrs.training):
            return None
        gamma, beta, mean, var = (a.astype(np.float64) for a in arrays if a is not None)
        scale = 1.0 / np.sqrt(var + float(attrs.epsilon))
        if attrs.scale:
            scale = scale * gamma
        shift = -mean * scale + (beta if attrs.center else 0.0)
        x = norm.args[0]
        axis = int(attrs.axis) % len(shape_of(x) or (0,) * int(x.ty.ndim))
        folded = self._into_producer(x, axis, scale, shift)
        return self._as_scale(x, axis, scale, shift) if folded is None else folded

    def _as_scale(
        self, x: relax.Expr, axis: int, scale: np.ndarray, shift: np.ndarray
    ) -> relax.Expr:
        along = self._along(x, axis)
        scaled = self.builder_.emit(relax.op.multiply(x, constant(self._cast(x, scale, along))))
        return relax.op.add(scaled, constant(self._cast(x, shift, along)))

    def _into_producer(
        self, x: relax.Expr, axis: int, scale: np.ndarray, shift: np.ndarray
    ) -> relax.Expr | None:
        producer, bias = self._producer(x)
        if producer is None or op_name(producer) != "relax.nn.conv2d" or axis != 1:
            return None
        weight = array_of(producer.args[1])
        if weight is None or producer.attrs.data_layout != "NCHW":
            return None
        w = weight.astype(np.float64) * scale[:, None, None, None]
        conv = self.builder_.emit(
            relax.Call(
                producer.op,
                [producer.args[0], constant(w.astype(weight.dtype))],
                producer.attrs,
                producer.ty_args,
            )
        )
        total = shift if bias is None else shift + bias.reshape(-1).astype(np.float64) * scale
        return relax.op.add(conv, constant(self._cast(x, total, self._along(x, axis))))

    def _producer(self, x: relax.Expr) -> tuple[relax.Call | None, np.ndarray | None]:
        """The convolution behind ``x`` and its constant bias, when nothing else reads them."""
        call = self._single_use(x)
        if call is None or op_name(call) != "relax.add":
            return call, None
        for value, other in (call.args, reversed(call.args)):
            bias, producer = array_of(other), self._single_use(value)
            if bias is not None and producer is not None and self._per_channel(bias, x):
                return producer, np.broadcast_to(bias.reshape(-1), (shape_of(x) or (0, 0))[1])
        return None, None

    def _per_channel(self, bias: np.ndarray, x: relax.Expr) -> bool:
        channels = (shape_of(x) or (0, 0))[1]
        wanted = (1, channels, 1, 1)[-bias.ndim :] if bias.ndim else ()
        return bias.size == 1 or (bias.ndim >= 3 and bias.shape == wanted)

    def _single_use(self, x: relax.Expr) -> relax.Call | None:
        if not isinstance(x, relax.Var) or self.uses.get(x.name, 0) > 1:
            return None
        value = self.lookup_binding(x)
        return value if isinstance(value, relax.Call) else None

    @staticmethod
    def _along(x: relax.Expr, axis: int) -> tuple[int, ...]:
        ndim = int(x.ty.ndim)
        return tuple(-1 if d == axis else 1 for d in range(ndim))

    @staticmethod
    def _cast(x: relax.Expr, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return values.reshape(shape).astype(str(x.ty.dtype))


@tvm.transform.module_pass(opt_level=0, name="FoldBatchNorm")
class FoldBatchNorm:
    """Placement: graph level, before layout conversion; variable names must be unique."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        uses = {v.name: n for v, n in count_uses(mod["main"]).items()}
        mod["main"] = _Folder(mod, uses).visit_expr(mod["main"])
        return mod
