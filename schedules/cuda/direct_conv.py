"""Depthwise and grouped convolutions on a GPU: a tile of pixels and channels in each thread.

They have too few terms a result for operands to be worth sharing between threads: neighbouring
threads take neighbouring channels, so that what they load lies side by side, and a thread reuses
its own window along a row of pixels and its weights over all of them.

    block: part of one row of pixels x channels; a thread: tw pixels x tc channels of one group
        for each kh (and, in groups, each kw and four input channels):
            window[...] in registers, zeros outside of the image; then multiply
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.hardware.gpus import Gpu
from tvmfuse.schedules import base
from tvmfuse.schedules.anchor import Conv2d
from tvmfuse.schedules.cuda.binding import bind_rows, gpu_of
from tvmfuse.schedules.variant import Variant, zero

FAMILY = "direct_conv"
WINDOW = "window"  # name of the staged input
_PIXELS, _CHANNELS = (1, 2, 4, 8), (1, 2, 4)
_REGISTERS = 96  # that a thread's tile, window and weights may take together
_RTOL = 2e-5


@dataclass(frozen=True)
class Tile:
    """Pixels of one row, and channels of one group, that a thread computes."""

    pixels: int
    channels: int


def applicable(a: Conv2d) -> bool:
    """Float32 in groups."""
    return a.dtype == "float32" and a.groups > 1


def _span(a: Conv2d, pixels: int) -> int:
    """Columns of the image that ``pixels`` neighbours read."""
    return (pixels - 1) * a.stride[1] + (a.KW - 1) * a.dilation[1] + 1


def best_tile(a: Conv2d, gpu: Gpu) -> Tile:
    """The tile with the least estimated time."""
    found = [
        Tile(tw, tc)
        for tw in _PIXELS
        for tc in _CHANNELS
        if (a.O // a.groups) % tc == 0 or (_is_depthwise(a) and a.O % tc == 0)
        if tw == 1 or (tw < 2 * a.OW and _registers(a, tw, tc) <= _REGISTERS)
    ]
    return min(found, key=lambda t: estimate(t, a, gpu))


def _is_depthwise(a: Conv2d) -> bool:
    return a.groups == a.C == a.O


def _registers(a: Conv2d, pixels: int, channels: int) -> int:
    if _is_depthwise(a):
        return channels * (pixels + _span(a, pixels) + a.KW)
    return pixels * channels + 4 * pixels + channels


def estimate(t: Tile, a: Conv2d, gpu: Gpu) -> float:
    """Relative time of one call: instructions of a thread, times the threads that one
    multiprocessor gets, over how busy they keep it.

    A model for the order of tiles, never calibrated on a device.
    """
    depth = a.C // a.groups
    if _is_depthwise(a):
        loads = a.KH * (_span(a, t.pixels) + a.KW)
    else:
        loads = a.KH * a.KW * depth * (t.pixels / 4 + 1)
    sums = t.pixels * t.channels * a.KH * a.KW * depth
    threads = a.N * a.OH * math.ceil(a.OW / t.pixels) * (a.O // t.channels)
    mine = math.ceil(threads / gpu.sms / gpu.warp) * gpu.warp
    busy = min(1.0, mine / (gpu.threads_per_sm / 2))
    return mine * (sums + 4 * loads + 8 * t.pixels) / busy


def direct_conv(a: Conv2d, hardware: Hardware) -> Variant:
    """The convolution over rows padded to whole tiles, weights packed [KH * KW * C / groups, O]."""
    tile, depth, outs = best_tile(a, gpu_of(hardware)), a.C // a.groups, a.O // a.groups
    (sh, sw), (dh, dw), (top, left, _, _) = a.stride, a.dilation, a.pad
    columns = math.ceil(a.OW / tile.pixels) * tile.pixels
    high, wide = (a.OH - 1) * sh + (a.KH - 1) * dh + 1, _span(a, columns)

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        def padded(n: Any, h: Any, col: Any, c: Any) -> Any:
            guards = [h >= top] * (top > 0) + [h < a.H + top] * (high > a.H + top)
            guards += [col >= left] * (left > 0) + [col < a.W + left] * (wide > a.W + left)
            value = x[n, h - top, col - left, c]
            return tirx.if_then_else(tirx.all(*guards), value, zero(a.dtype)) if guards else value

        window = te.compute((a.N, high, wide, a.C), padded, name=WINDOW)
        kh, kw = te.reduce_axis((0, a.KH), "kh"), te.reduce_axis((0, a.KW), "kw")
        c = te.reduce_axis((0, depth), "c")

        notes = {
            base.FAMILY: FAMILY, "tvmfuse.pixels": tile.pixels, "tvmfuse.channels": tile.channels,
        }  # fmt: skip

        def one(n: Any, h: Any, col: Any, group: Any, o: Any) -> Any:
            pixel = window[n, h * sh + kh * dh, col * sw + kw * dw, group * depth + c]
            return te.sum(
                pixel * w[(kh * a.KW + kw) * depth + c, group * outs + o], axis=[kh, kw, c]
            )

        # Groups have an axis of their own: TVM sees in no division that a tile stays in its group.
        grouped = (a.N, a.OH, columns, a.groups, outs)
        if _is_depthwise(a):
            body = lambda n, h, col, o: one(n, h, col, o, 0)  # noqa: E731
            rows = te.compute((*grouped[:3], a.O), body, name="conv2d", attrs=notes)
            return te.compute((a.N, a.OH, a.OW, a.O), lambda *at: rows(*at), name="crop")
        rows = te.compute(grouped, one, name="conv2d", attrs=notes)
        return te.compute(
            (a.N, a.OH, a.OW, a.O),
            lambda n, h, col, o: rows[n, h, col, o // outs, o % outs],
            name="crop",
        )

    def pack(weight_OHWI: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(weight_OHWI.reshape(a.O, a.KH * a.KW * depth).T)

    image, packed = (a.N, a.H, a.W, a.C), (a.KH * a.KW * depth, a.O)
    return Variant("direct_tiles", a, image, packed, compute, pack, a.flops, _RTOL)


class DirectConvTemplate:
    """See the module."""

    name = "cuda.direct_conv"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        sch = base.new_schedule(func)
        anchor = base.find_family(base.blocks(sch), FAMILY)
        if anchor is None:
            return None
        notes = anchor.annotations
        tile = Tile(int(notes["tvmfuse.pixels"]), int(notes["tvmfuse.channels"]))
        return [_schedule(sch, anchor, tile)]


def _schedule(sch: Schedule, anchor: base.Block, tile: Tile) -> Schedule:
    conv, window = anchor.rv, sch.get_sblock(WINDOW)
    base.inline_producers(sch, conv, keep=(WINDOW,))
    out = base.detach_output(sch, conv)
    n, h, w, *group, c, kh, kw, ci = sch.get_loops(conv)
    depthwise = not group
    if group:
        outs = anchor.spatial[-1]
        split = tirx.IndexMap.from_func(lambda n, h, col, o: [n, h, col, o // outs, o % outs])
        sch.transform_block_layout(out, split)
    w0, w1 = sch.split(w, [None, tile.pixels])
    c0, c1 = sch.split(c, [None, tile.channels])
    ci0, ci1 = sch.split(ci, [None, base.vector_width(anchor.extents[-1], 4)])
    sch.reorder(n, h, w0, *group, c0, kh, kw, ci0, ci1, w1, c1)
    thread = bind_rows(sch, [n, h], [w0, *group, c0], n)
    sch.reverse_compute_at(out, thread, preserve_unit_loops=True)
    sch.set_scope(conv, 0, "local")
    sch.compute_at(window, kh if depthwise else ci0, preserve_unit_loops=True)
    sch.set_scope(window, 0, "local")
    weights = sch.cache_read(conv, 1, "local")
    sch.compute_at(weights, kh if depthwise else ci1, preserve_unit_loops=True)
    spots = (window, kh if depthwise else ci0), (weights, kh if depthwise else ci1), (out, thread)
    for staged, spot in spots:
        *rest, last = sch.get_loops(staged)[base.depth_in(sch, staged, spot) :]
        for loop in rest:
            sch.unroll(loop)
        base.split_vector(sch, last, 4, parallel=False)
    for loop in (*((kw,) if depthwise else ()), ci1, w1):
        sch.unroll(loop)
    sch.vectorize(c1)
    sch.decompose_reduction(conv, kh)
    return sch
