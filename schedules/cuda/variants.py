"""Which algorithms can compute an anchor on a GPU, the model's favourite first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules.anchor import Anchor, Attention, BatchMatmul, Conv2d, Dense, Step
from tvmfuse.schedules.cpu.batch_matmul import RTOL, naive
from tvmfuse.schedules.cuda import direct_conv
from tvmfuse.schedules.cuda.binding import gpu_of
from tvmfuse.schedules.cuda.gemm import applicable, gemm_conv2d, gemm_dense
from tvmfuse.schedules.cuda.tensor import FAMILY as TENSOR
from tvmfuse.schedules.cuda.tensor import on_tensor_cores
from tvmfuse.schedules.strides import load, row_major
from tvmfuse.schedules.variant import (
    OUT_ELEMWISE_FUSABLE,
    AnyVariant,
    Variant,
    WrittenVariant,
    twin,
    widened,
    zero,
)

FAMILY = "contraction"  # annotation of the block that computes a convolution or a product
_ATTENTION_RTOL = {"float32": 2e-5}
_HALF_RTOL = 2e-2


def variants_of(anchor: Anchor, hardware: Hardware) -> tuple[AnyVariant, ...]:
    """All variants of ``anchor`` in ascending order of estimated time."""
    if isinstance(anchor, (Conv2d, Dense)) and anchor.result:
        if on_tensor_cores(anchor, gpu_of(hardware)) and applicable(anchor):
            made = gemm_conv2d if isinstance(anchor, Conv2d) else gemm_dense
            return (made(anchor, TENSOR),)  # type: ignore[operator]
        same = variants_of(twin(anchor), hardware)
        return tuple(widened(v, anchor) for v in same if isinstance(v, Variant))
    if isinstance(anchor, Conv2d):
        if direct_conv.applicable(anchor):
            return (direct_conv.direct_conv(anchor, hardware),)
        return (gemm_conv2d(anchor),) if applicable(anchor) else (conv2d(anchor),)
    if isinstance(anchor, Dense):
        return (gemm_dense(anchor),) if applicable(anchor) else (dense(anchor),)
    if isinstance(anchor, BatchMatmul):
        return (WrittenVariant("direct", anchor, lambda: naive(anchor), 1.0, RTOL[anchor.dtype]),)
    rtol = _ATTENTION_RTOL.get(anchor.dtype, _HALF_RTOL)
    return (WrittenVariant("steps", anchor, lambda: attention(anchor), 1.0, rtol),)


def conv2d(a: Conv2d) -> Variant:
    """The convolution by its definition, weights packed to [KH * KW * C, O]."""
    (sh, sw), (dh, dw), (top, left, bottom, right) = a.stride, a.dilation, a.pad
    outs, depth = a.O // a.groups, a.C // a.groups

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        def padded(n: Any, h: Any, col: Any, c: Any) -> Any:
            inside = tirx.all(h >= top, h < a.H + top, col >= left, col < a.W + left)
            return tirx.if_then_else(inside, x[n, h - top, col - left, c], zero(a.dtype))

        shape = (a.N, a.H + top + bottom, a.W + left + right, a.C)
        wide = te.compute(shape, padded, name="pad") if any(a.pad) else x
        kh, kw = te.reduce_axis((0, a.KH), "kh"), te.reduce_axis((0, a.KW), "kw")
        c = te.reduce_axis((0, depth), "c")

        def body(n: Any, h: Any, col: Any, o: Any) -> Any:
            channel = o // outs * depth + c if a.groups > 1 else c
            pixel = wide[n, h * sh + kh * dh, col * sw + kw * dw, channel]
            return te.sum(pixel * w[(kh * a.KW + kw) * depth + c, o], axis=[kh, kw, c])

        return te.compute((a.N, a.OH, a.OW, a.O), body, name="conv2d")

    def pack(weight_OHWI: np.ndarray) -> np.ndarray:
        rows = weight_OHWI.reshape(a.O, a.KH * a.KW * depth)
        return np.ascontiguousarray(rows.T)

    return Variant(
        "direct", a, (a.N, a.H, a.W, a.C), (a.KH * a.KW * depth, a.O), compute, pack, a.flops, 2e-5
    )


def dense(a: Dense) -> Variant:
    """The product by its definition, weights as they are."""

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, a.K), "k")

        def body(*at: Any) -> Any:
            return te.sum(x(*at[:-1], k) * w[k, at[-1]], axis=[k])

        return te.compute((*a.lead, a.M, a.O), body, name="dense")

    return Variant(
        "direct", a, (*a.lead, a.M, a.K), (a.K, a.O), compute, np.ascontiguousarray, a.flops, 2e-5
    )


def attention(a: Attention) -> PrimFunc:
    """Attention step by step, with the score matrix in memory."""
    tensors = [te.placeholder(s, d, name=f"x{i}") for i, (s, d) in enumerate(a.buffers)]

    def read(view: Any, lead: Any, row: Any, rows: int, column: Any, columns: int) -> Any:
        axes = list(zip(lead, a.lead, strict=True))
        return load(tensors[view.buffer], view, axes, (row, rows), (column, columns))

    def wide(value: Any) -> Any:
        return value if value.ty.dtype == "float32" else value.astype("float32")

    rank, d, key = len(a.lead), te.reduce_axis((0, a.D), "d"), te.reduce_axis((0, a.SK), "key")

    def product(*at: Any) -> Any:
        *lead, m, n = at
        q = wide(read(a.q, lead, m, a.SQ, d, a.D))
        return te.sum(q * wide(read(a.k, lead, n, a.SK, d, a.D)), axis=[d])

    raw = te.compute((*a.lead, a.SQ, a.SK), product, name="products")

    def score(*at: Any) -> Any:
        *lead, m, n = at
        value = raw(*at)
        for step in a.steps:
            mask = None
            if step.mask is not None:
                mask = read(step.mask, lead, m, a.SQ, n, a.SK)
            value = _stepped(value, step, mask, m, n)
        return value

    scores = te.compute((*a.lead, a.SQ, a.SK), score, name="scores")
    top = te.compute(
        (*a.lead, a.SQ), lambda *at: te.max(scores(*at, key), axis=[key]), name="largest"
    )
    # A row in which every score is -inf: zeros where that is asked for, else NaN as in softmax.
    low = tirx.min_value("float32")
    shift = te.compute(
        top.shape, lambda *at: tirx.max(top(*at), low) if a.safe else top(*at), name="shift"
    )
    parts = te.compute(
        scores.shape, lambda *at: tirx.exp(scores(*at) - shift(*at[:-1])), name="parts"
    )
    k1, k2 = te.reduce_axis((0, a.SK), "k1"), te.reduce_axis((0, a.SK), "k2")
    total = te.compute(top.shape, lambda *at: te.sum(parts(*at, k1), axis=[k1]), name="total")

    def mixed(*at: Any) -> Any:
        *lead, m, c = at
        return te.sum(parts(*lead, m, k2) * wide(read(a.v, lead, k2, a.SK, c, a.DV)), axis=[k2])

    sums = te.compute((*a.lead, a.SQ, a.DV), mixed, name="mixed")

    def result(*at: Any) -> Any:
        spot = _origin(a, at)
        whole = total(*spot[: rank + 1])
        value = sums(*spot) / whole
        if a.safe:
            value = tirx.Select(whole == zero("float32"), zero("float32"), value)
        return value if a.dtype == "float32" else value.astype(a.dtype)

    out = te.compute(a.out_shape, result, name="out")
    func = te.create_prim_func([*tensors, out], index_dtype_override="int64")
    func = func.without_attr("global_symbol")
    return func.with_attr("op_pattern", OUT_ELEMWISE_FUSABLE).with_attr("tirx.noalias", True)


def _stepped(value: Any, step: Step, mask: Any, query: Any, key: Any) -> Any:
    constant = tirx.const(step.value, "float32")
    if step.kind == "scale":
        return value * constant
    if step.kind == "causal":
        return tirx.Select(key > query + step.offset, constant, value)
    if step.kind in ("multiply", "add"):
        other = mask if mask.ty.dtype == "float32" else mask.astype("float32")
        return value * other if step.kind == "multiply" else value + other
    held = mask if mask.ty.dtype == "bool" else mask != tirx.const(0, mask.ty.dtype)
    return (
        tirx.Select(held, value, constant)
        if step.kind == "where"
        else tirx.Select(held, constant, value)
    )


def _origin(a: Attention, at: Any) -> list[Any]:
    """Indices (lead, row, column) of the result's element that is stored at ``at``."""
    extents = [*a.lead, a.SQ, a.DV]
    strides = [*a.out.lead, a.out.row, a.out.column]
    if math.prod(extents) != math.prod(a.out_shape) or a.out.offset:
        raise ValueError(f"the output {a.out} of attention does not fill {a.out_shape}")
    flat = sum(i * s for i, s in zip(at, row_major(a.out_shape), strict=True))
    return [
        flat // tvm.tirx.const(s, "int64") % e if e > 1 else tvm.tirx.const(0, "int64")
        for e, s in zip(extents, strides, strict=True)
    ]
