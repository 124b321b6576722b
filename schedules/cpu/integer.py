"""Convolutions and products of uint8 with int8 weights, as contractions of words of four bytes.

    y[r, w, o] = sum_k x[r, w, 4k … 4k + 3] · wp[o // L, k, o % L] + wp[o // L, K, o % L]

The template and its register tiles are those of :mod:`.contraction`; only the step differs
(:mod:`.dot4`). The zero point of the activation is folded into the last row of the packed weight,
``-zero * sum_k w[k, o]``, so that inner loops know nothing of it. Input channels are filled up to
whole words, with weights that are zero there.

Depthwise convolutions sum over the window alone: bytes are widened to int32, as vectors of
channels, by the template of :mod:`.outer_reduction`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base
from tvmfuse.schedules.anchor import IntegerAnchor, IntegerConv2d, IntegerDense
from tvmfuse.schedules.cpu.contraction import (
    FAMILY,
    PAD_BLOCK,
    cropped,
    direct_cycles,
    lanes_for,
    padded_columns,
)
from tvmfuse.schedules.cpu.depthwise import applicable as is_depthwise
from tvmfuse.schedules.cpu.dot4 import WORD, has_instruction, summed, word_of
from tvmfuse.schedules.variant import Variant

X, W, SUM = "uint8", "int8", "int32"
_WIDENED = 8.0  # operations that one multiplication of bytes takes without the instruction
# |x - zero| is at most 255, |w| at most 128: so many products are in the range of int32.
LONGEST = (2**31 - 1) // (255 * 128)


def integer(anchor: IntegerAnchor, hardware: Hardware) -> Variant:
    """The variant of an integer convolution or product."""
    if isinstance(anchor, IntegerDense):
        return _dense(anchor, hardware)
    return _depthwise(anchor, hardware) if is_depthwise(anchor) else _conv2d(anchor, hardware)


def words(depth: int) -> int:
    """Words that so many bytes fill."""
    return -(-depth // WORD)


def _cycles(anchor: IntegerAnchor, hardware: Hardware) -> float:
    each = 1 / WORD if has_instruction(hardware) else _WIDENED
    return direct_cycles(anchor, hardware) * each


def _packed(w_KO: np.ndarray, lanes: int, zero: int) -> np.ndarray:
    """Words [O/L, K (+ 1), L] of a matrix whose rows fill whole words."""
    depth, channels = w_KO.shape
    split = w_KO.reshape(depth // WORD, WORD, channels // lanes, lanes).transpose(2, 0, 3, 1)
    packed = np.ascontiguousarray(split).view(SUM)[..., 0]
    if not zero:
        return packed
    shift = -zero * w_KO.astype(np.int64).sum(0).reshape(channels // lanes, 1, lanes)
    return np.concatenate([packed, shift.astype(SUM)], axis=1)


def _conv2d(conv: IntegerConv2d, hardware: Hardware) -> Variant:
    per_group, cg = conv.O // conv.groups, conv.C // conv.groups
    if conv.groups > 1 and cg % WORD:
        raise ValueError(f"groups of {cg} channels fill no words of {WORD}")
    lanes, deep = lanes_for(per_group, hardware), words(cg)
    depth = conv.KH * conv.KW * deep
    packed = (conv.O // lanes, depth + bool(conv.zero), lanes)

    def pack(w_OHWI: np.ndarray) -> np.ndarray:
        wide = np.pad(w_OHWI, ((0, 0), (0, 0), (0, 0), (0, deep * WORD - cg)))
        return _packed(wide.reshape(conv.O, depth * WORD).T, lanes, conv.zero)

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        columns = padded_columns(conv.OW, hardware)
        channels = conv.C if conv.groups > 1 else deep * WORD
        x = _padded_image(x, conv, columns, channels)
        kh, kw = te.reduce_axis((0, conv.KH), "kh"), te.reduce_axis((0, conv.KW), "kw")
        c = te.reduce_axis((0, deep), "c")
        (sh, sw), (dh, dw) = conv.stride, conv.dilation

        def body(n: Any, h: Any, col: Any, o: Any) -> Any:
            first = c * WORD if conv.groups == 1 else o // per_group * cg + c * WORD
            word = word_of(lambda i: x[n, h * sh + kh * dh, col * sw + kw * dw, first + i])
            weight = w[o // lanes, (kh * conv.KW + kw) * deep + c, o % lanes]
            return summed(word, weight, [kh, kw, c], hardware)

        shape = (conv.N, conv.OH, columns, conv.O)
        sums = te.compute(shape, body, name="conv2d", attrs=_notes(lanes, channels * sw))
        return _shifted(cropped(sums, conv.OW), w, lanes, conv.zero)

    shape = (conv.N, conv.H, conv.W, conv.C)
    cycles = _cycles(conv, hardware)
    return Variant("dot4", conv, shape, packed, compute, pack, cycles, 0.0, weight_type=SUM)


def _notes(lanes: int, stride: int) -> dict[str, Any]:
    return {base.FAMILY: FAMILY, base.LANES: lanes, base.STRIDE: stride, base.EXACT: 1}


def _shifted(sums: te.Tensor, w: te.Tensor, lanes: int, zero: int) -> te.Tensor:
    """Sums of ``x - zero`` from those of ``x``: the weight's last row is the difference."""
    if not zero:
        return sums
    last = int(w.shape[1]) - 1
    return te.compute(
        sums.shape, lambda *i: sums(*i) + w[i[-1] // lanes, last, i[-1] % lanes], name="shift"
    )


def _padded_image(x: te.Tensor, conv: IntegerConv2d, columns: int, channels: int) -> te.Tensor:
    """The image with ``zero`` around it, wide enough for ``columns``, with whole words."""
    top, left, bottom, right = conv.pad
    reach = (columns - 1) * conv.stride[1] + (conv.KW - 1) * conv.dilation[1] + 1
    wide = max(conv.W + left + right, reach)
    shape = (conv.N, conv.H + top + bottom, wide, channels)
    if shape == (conv.N, conv.H, conv.W, conv.C):
        return x

    def body(n: Any, h: Any, w: Any, c: Any) -> Any:
        inside = [h >= top, h < conv.H + top, w >= left, w < conv.W + left]
        if channels > conv.C:
            inside.append(c < conv.C)
        return tirx.if_then_else(
            tirx.all(*inside), x[n, h - top, w - left, c], tirx.const(conv.zero, X)
        )

    return te.compute(shape, body, name=PAD_BLOCK)


def _dense(product: IntegerDense, hardware: Hardware) -> Variant:
    lanes, deep = lanes_for(product.O, hardware), words(product.K)

    def pack(w_KO: np.ndarray) -> np.ndarray:
        wide = np.pad(w_KO, ((0, deep * WORD - product.K), (0, 0)))
        return _packed(wide, lanes, product.zero)

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        rows = padded_columns(product.M, hardware)
        if (rows, deep * WORD) != (product.M, product.K):
            x = _padded_matrix(x, product, rows, deep * WORD)
        k = te.reduce_axis((0, deep), "k")

        def body(*axes: Any) -> Any:
            *lead, m, o = axes
            word = word_of(lambda i: x(*lead, m, k * WORD + i))
            return summed(word, w[o // lanes, k, o % lanes], [k], hardware)

        shape = (*product.lead, rows, product.O)
        sums = te.compute(shape, body, name="dense", attrs=_notes(lanes, deep * WORD))
        return _shifted(cropped(sums, product.M), w, lanes, product.zero)

    shape = (*product.lead, product.M, product.K)
    packed = (product.O // lanes, deep + bool(product.zero), lanes)
    cycles = _cycles(product, hardware)
    return Variant("dot4", product, shape, packed, compute, pack, cycles, 0.0, weight_type=SUM)


def _padded_matrix(x: te.Tensor, product: IntegerDense, rows: int, depth: int) -> te.Tensor:
    def body(*axes: Any) -> Any:
        *lead, m, k = axes
        inside = tirx.all(m < product.M, k < product.K)
        return tirx.if_then_else(inside, x(*lead, m, k), tirx.const(product.zero, X))

    return te.compute((*product.lead, rows, depth), body, name=PAD_BLOCK)


def _depthwise(conv: IntegerConv2d, hardware: Hardware) -> Variant:
    def pack(w_OHWI: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(w_OHWI.reshape(conv.C, conv.KH, conv.KW).transpose(1, 2, 0))

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        x = _padded_image(x, conv, conv.OW, conv.C)
        kh, kw = te.reduce_axis((0, conv.KH), "kh"), te.reduce_axis((0, conv.KW), "kw")
        (sh, sw), (dh, dw) = conv.stride, conv.dilation

        def body(n: Any, h: Any, col: Any, c: Any) -> Any:
            pixel = x[n, h * sh + kh * dh, col * sw + kw * dw, c].astype(SUM)
            if conv.zero:
                pixel = pixel - tirx.const(conv.zero, SUM)
            return te.sum(pixel * w[kh, kw, c].astype(SUM), axis=[kh, kw])

        shape = (conv.N, conv.OH, conv.OW, conv.C)
        notes = {base.FAMILY: "outer_reduction", base.EXACT: 1}
        return te.compute(shape, body, name="depthwise", attrs=notes)

    shape = (conv.N, conv.H, conv.W, conv.C)
    packed = (conv.KH, conv.KW, conv.C)
    cycles = direct_cycles(conv, hardware)
    return Variant("widened", conv, shape, packed, compute, pack, cycles, 0.0, weight_type=W)


def naive(anchor: IntegerAnchor) -> Any:
    """The definition over the logical weight: ``compute(x, w) -> int32``."""
    zero = tirx.const(anchor.zero, SUM)
    if isinstance(anchor, IntegerDense):

        def product(x: te.Tensor, w: te.Tensor) -> te.Tensor:
            k = te.reduce_axis((0, anchor.K), "k")
            return te.compute(
                (*anchor.lead, anchor.M, anchor.O),
                lambda *i: te.sum(
                    (x(*i[:-1], k).astype(SUM) - zero) * w[k, i[-1]].astype(SUM), axis=[k]
                ),
                name="dense",
            )

        return product
    (sh, sw), (dh, dw) = anchor.stride, anchor.dilation
    per_group, cg = anchor.O // anchor.groups, anchor.C // anchor.groups

    def convolution(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        wide = _padded_image(x, anchor, anchor.OW, anchor.C)
        kh, kw = te.reduce_axis((0, anchor.KH), "kh"), te.reduce_axis((0, anchor.KW), "kw")
        c = te.reduce_axis((0, cg), "c")

        def body(n: Any, h: Any, col: Any, o: Any) -> Any:
            channel = o // per_group * cg + c
            pixel = wide[n, h * sh + kh * dh, col * sw + kw * dw, channel].astype(SUM) - zero
            return te.sum(pixel * w[o, kh, kw, c].astype(SUM), axis=[kh, kw, c])

        return te.compute((anchor.N, anchor.OH, anchor.OW, anchor.O), body, name="conv2d")

    return convolution
