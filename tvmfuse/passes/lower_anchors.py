"""Lower every operator to a kernel, the anchors to kernels that say what they compute.

A convolution or product with constant weights becomes a naive kernel over its logical weight
that carries a `tvmfuse.schedules.anchor` record; `specialize` later swaps in one of its variants
and packs the weight for it. Output channels that fill no vector are padded here, with a slice
behind. Everything else is legalised by TVM.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tvm
from tvm import relax, te

from tvmfuse.config import HALVES
from tvmfuse.hardware import Hardware
from tvmfuse.passes.relax_tools import array_of, constant, dtype_of, ints, shape_of, stock
from tvmfuse.precision.mixed import WIDE
from tvmfuse.schedules.anchor import ATTR, Anchor, Conv2d, Dense, to_text
from tvmfuse.schedules.cpu.concat import concat
from tvmfuse.schedules.cpu.contraction import lanes_for
from tvmfuse.schedules.variant import OUT_ELEMWISE_FUSABLE

VECTOR_CHANNELS = 8  # channels are padded to multiples of this when they fill no vector


def conv2d_anchor(call: relax.Call) -> Conv2d | None:
    """The anchor record of a convolution; None when it is not one of ours."""
    attrs = call.attrs
    x, w = shape_of(call.args[0]), shape_of(call.args[1])
    ours = str(attrs.data_layout) == "NHWC" and str(attrs.kernel_layout) == "OHWI"
    types = _types(call)
    if x is None or w is None or not ours or types is None or array_of(call.args[1]) is None:
        return None
    if 0 in x or 0 in w:
        return None
    pad = ints(attrs.padding)
    return Conv2d(
        *x,
        O=w[0],
        KH=w[1],
        KW=w[2],
        stride=ints(attrs.strides),  # type: ignore[arg-type]
        pad=pad,  # type: ignore[arg-type]
        dilation=ints(attrs.dilation),  # type: ignore[arg-type]
        groups=int(attrs.groups),
        dtype=types[0],
        result=types[1],
    )


def _types(call: relax.Call) -> tuple[str, str] | None:
    """Type of both operands, and that of the result if it is float32 over halves; else None."""
    x, w, result = (dtype_of(e) for e in (*call.args[:2], call))
    if x != w:
        return None
    if x == result:
        return x, ""
    return (x, result) if x in HALVES and result == WIDE else None


def dense_anchor(call: relax.Call) -> Dense | None:
    """The anchor record of a product with a constant matrix; None when it is not one of ours."""
    x, w = shape_of(call.args[0]), shape_of(call.args[1])
    types = _types(call)
    if x is None or w is None or len(w) != 2 or len(x) < 2 or array_of(call.args[1]) is None:
        return None
    if types is None or 0 in x or 0 in w:
        return None
    return Dense(x[:-2], x[-2], x[-1], w[1], *types)


def _naive_conv2d(conv: Conv2d) -> Any:
    (sh, sw), (dh, dw), (top, left, bottom, right) = conv.stride, conv.dilation, conv.pad
    per_group, cg = conv.O // conv.groups, conv.C // conv.groups
    summed = _as_summed(conv)

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        def padded(n: Any, h: Any, col: Any, c: Any) -> Any:
            inside = tvm.tirx.all(h >= top, h < conv.H + top, col >= left, col < conv.W + left)
            value = x[n, h - top, col - left, c]
            return tvm.tirx.if_then_else(inside, value, tvm.tirx.const(0, conv.dtype))

        shape = (conv.N, conv.H + top + bottom, conv.W + left + right, conv.C)
        wide = te.compute(shape, padded, name="pad") if any(conv.pad) else x
        kh = te.reduce_axis((0, conv.KH), "kh")
        kw = te.reduce_axis((0, conv.KW), "kw")
        c = te.reduce_axis((0, cg), "c")
        return te.compute(
            (conv.N, conv.OH, conv.OW, conv.O),
            lambda n, h, col, o: te.sum(
                summed(wide[n, h * sh + kh * dh, col * sw + kw * dw, o // per_group * cg + c])
                * summed(w[o, kh, kw, c]),
                axis=[kh, kw, c],
            ),
            name="conv2d",
        )

    return compute


def _as_summed(anchor: Conv2d | Dense) -> Any:
    """An operand's element in the type of the sums."""
    return (lambda value: value.astype(anchor.result)) if anchor.result else (lambda value: value)


def _naive_dense(product: Dense) -> Any:
    summed = _as_summed(product)

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, product.K), "k")
        return te.compute(
            (*product.lead, product.M, product.O),
            lambda *i: te.sum(summed(x(*i[:-1], k)) * summed(w[k, i[-1]]), axis=k),
            name="dense",
        )

    return compute


def _anchor_kernel(bb: relax.BlockBuilder, x: Any, w: Any, anchor: Anchor) -> relax.Expr:
    naive = _naive_conv2d(anchor) if isinstance(anchor, Conv2d) else _naive_dense(anchor)
    attrs = {ATTR: to_text(anchor), "op_pattern": OUT_ELEMWISE_FUSABLE}
    hint = "conv2d" if isinstance(anchor, Conv2d) else "dense"
    return bb.call_te(naive, x, w, primfunc_name_hint=hint, primfunc_attrs=attrs)


def padded_channels(anchor: Anchor, hardware: Hardware) -> int:
    """Output channels after padding: whole small vectors, so that a vector divides them."""
    if isinstance(anchor, Conv2d) and anchor.groups > 1:
        return anchor.O
    if lanes_for(anchor.O, hardware) > 1:
        return anchor.O
    return -(-anchor.O // VECTOR_CHANNELS) * VECTOR_CHANNELS


def legalize_map(hardware: Hardware) -> dict[str, Any]:
    """Custom legalisations for ``relax.transform.LegalizeOps``."""

    def with_anchor(bb: relax.BlockBuilder, call: relax.Call, anchor: Anchor, axis: int) -> Any:
        x, w = call.args
        channels = padded_channels(anchor, hardware)
        if channels == anchor.O:
            return _anchor_kernel(bb, x, w, anchor)
        weight = array_of(w)
        assert weight is not None
        width = [(0, 0)] * weight.ndim
        width[axis] = (0, channels - anchor.O)
        wide = dataclasses.replace(anchor, O=channels)
        padded = constant(np.pad(weight, width))
        y = bb.emit(_anchor_kernel(bb, x, padded, wide))
        shape = shape_of(call)
        assert shape is not None
        return bb.call_te(
            lambda t: te.compute(shape, lambda *i: t(*i), name="slice"),
            y,
            primfunc_name_hint="slice",
        )

    def conv2d(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        anchor = conv2d_anchor(call)
        if anchor is None:
            return stock("relax.nn.conv2d")(bb, call)
        return with_anchor(bb, call, anchor, axis=0)

    def matmul(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        anchor = dense_anchor(call)
        if anchor is None:
            return stock("relax.matmul")(bb, call)
        return with_anchor(bb, call, anchor, axis=1)

    return {"relax.nn.conv2d": conv2d, "relax.matmul": matmul, "relax.concat": _concat}


def _concat(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    parts = [p for p in _tuple_fields(bb, call.args[0]) if 0 not in (shape_of(p) or ())]
    shapes = [shape_of(p) for p in parts]
    if len(parts) == 1 and shapes[0] == shape_of(call):
        return parts[0]
    if call.attrs.axis is None or any(not s for s in shapes) or len(parts) < 2:
        return stock("relax.concat")(bb, call)
    rank = len(shapes[0] or ())
    kernel = concat([s for s in shapes if s], int(call.attrs.axis) % rank, dtype_of(call))
    name = bb.add_func(kernel, "concat")
    return relax.call_tir(name, parts, out_ty=call.ty)


def _tuple_fields(bb: relax.BlockBuilder, expr: relax.Expr) -> list[relax.Expr]:
    if isinstance(expr, relax.Var):
        bound = bb.lookup_binding(expr)
        if bound is not None:
            expr = bound
    if isinstance(expr, relax.Tuple):
        return list(expr.fields)
    return [bb.emit(relax.TupleGetItem(expr, i)) for i in range(len(expr.ty.fields))]
