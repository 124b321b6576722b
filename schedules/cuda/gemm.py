"""Convolution and products on a GPU as one implicit GEMM, ``c[m, n] = Σ_k a[m, k] · b[k, n]``.

m: output pixels (or rows of a product), k: window and input channels, n: output channels. The
operands are padded with zeros to whole tiles where they are staged in shared memory, so that the
inner loops have no bounds checks on any shape; only loads and the epilogue's stores are predicated.

    block: bm x bn results, threads of tm x tn registers each
        for each bk of k: stage a[bm, bk] and b[bk, bn] in shared memory, then multiply

Rows of both tiles are contiguous and a thread reads four of them at once, a row of ``a`` broadcast
over the threads that share it: no bank conflicts, without padding.
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
from tvmfuse.schedules.anchor import Conv2d, Dense
from tvmfuse.schedules.cuda.binding import gpu_of
from tvmfuse.schedules.variant import Variant, zero

FAMILY = "implicit_gemm"
BK = 16  # terms in one stage
ROWS, COLUMNS = "rows", "columns"  # names of the staged operands
_RTOL = 2e-5


@dataclass(frozen=True)
class Tile:
    """Results of one block (``bm`` x ``bn``) and of one thread (``tm`` x ``tn``)."""

    bm: int
    bn: int
    tm: int
    tn: int

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return self.bm // self.tm * (self.bn // self.tn)


TILES = tuple(
    Tile(bm, bn, tm, tn)
    for bm in (8, 16, 32, 64, 128)
    for bn in (32, 64, 128)
    for tm in (1, 2, 4, 8)
    for tn in (4, 8)
    if 32 <= bm // tm * (bn // tn) <= 256 and bm // tm * tm == bm
)
PAD_M, PAD_N, PAD_K = 128, 128, 16
M, N = "tvmfuse.m", "tvmfuse.n"  # block annotations: rows and columns without padding


def estimate(t: Tile, m: int, n: int, gpu: Gpu) -> float:
    """Relative time of one call: blocks that one multiprocessor gets, each as fast as its warps
    hide latencies and its registers are reused, and what they load from memory.

    A model for the order of tiles, never calibrated on a device.
    """
    blocks = math.ceil(m / t.bm) * math.ceil(n / t.bn)
    mine = math.ceil(blocks / gpu.sms)
    together = min(mine, 8, gpu.threads_per_sm // t.threads)
    busy = min(1.0, together * t.threads / 256)
    loads = (t.tm + t.tn) / 4 / (t.tm * t.tn)  # of shared memory, an FMA
    return mine * (t.bm * t.bn * (1 + 4 * loads) / busy + 8 * (t.bm + t.bn))


def best_tile(m: int, n: int, gpu: Gpu) -> Tile:
    """The tile that the model likes best."""
    return min(TILES, key=lambda t: estimate(t, m, n, gpu))


def applicable(a: Conv2d | Dense) -> bool:
    """Float32 sums without groups, and more than one row: TVM drops an axis of extent one, by which
    the epilogue would find its row."""
    if (a.result or a.dtype) != "float32":
        return False
    if isinstance(a, Dense):
        return math.prod(a.lead) * a.M > 1
    return a.groups == 1 and a.N * a.OH * a.OW > 1


def gemm_conv2d(a: Conv2d, family: str = FAMILY) -> Variant:
    """Convolution without groups, weights packed [KH * KW * C, O] and padded to whole tiles.

    ``family`` names the template; operands that are narrower than their sums are widened in it.
    """
    m, n, k = a.N * a.OH * a.OW, a.O, a.KH * a.KW * a.C
    (sh, sw), (dh, dw), (top, left, _, _) = a.stride, a.dilation, a.pad

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        def row(i: Any, j: Any) -> Any:
            image, pixel, tap, c = i // (a.OH * a.OW), i % (a.OH * a.OW), j // a.C, j % a.C
            h = pixel // a.OW * sh + tap // a.KW * dh - top
            col = pixel % a.OW * sw + tap % a.KW * dw - left
            inside = [h >= 0, h < a.H, col >= 0, col < a.W]
            if not any(a.pad):
                inside = []
            return _guarded([*inside, *_bounds(i, m, PAD_M), *_bounds(j, k, PAD_K)],
                            x[image, h, col, c], a.dtype)  # fmt: skip

        flat = _product(row, w, (m, n, k), a, family)
        shape = (a.N, a.OH, a.OW, a.O)
        return te.compute(
            shape, lambda b, h, c, o: flat[(b * a.OH + h) * a.OW + c, o], name="unflatten"
        )

    def pack(weight_OHWI: np.ndarray) -> np.ndarray:
        return _padded(weight_OHWI.reshape(n, k).T, n, k)

    shape = (a.N, a.H, a.W, a.C)
    return Variant("gemm", a, shape, _packed(n, k), compute, pack, a.flops / 8, _RTOL)


def gemm_dense(a: Dense, family: str = FAMILY) -> Variant:
    """``x[..., M, K] @ w[K, O]`` with the weight padded to whole tiles; as the convolution."""
    m, n, k = math.prod(a.lead) * a.M, a.O, a.K

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        extents = (*a.lead, a.M)

        def row(i: Any, j: Any) -> Any:
            at, left = [], i
            for extent in reversed(extents[1:]):
                at.append(left % extent)
                left = left // extent
            guards = [*_bounds(i, m, PAD_M), *_bounds(j, k, PAD_K)]
            return _guarded(guards, x(left, *reversed(at), j), a.dtype)

        flat = _product(row, w, (m, n, k), a, family)

        def back(*at: Any) -> Any:
            i = at[0]
            for index, extent in zip(at[1:-1], extents[1:], strict=True):
                i = i * extent + index
            return flat[i, at[-1]]

        return te.compute((*extents, a.O), back, name="unflatten")

    def pack(w_KO: np.ndarray) -> np.ndarray:
        return _padded(w_KO, n, k)

    shape = (*a.lead, a.M, a.K)
    return Variant("gemm", a, shape, _packed(n, k), compute, pack, a.flops / 8, _RTOL)


def _up(value: int, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple


def _packed(n: int, k: int) -> tuple[int, int]:
    return _up(k, PAD_K), _up(n, PAD_N)


def _padded(w_KO: np.ndarray, n: int, k: int) -> np.ndarray:
    out = np.zeros(_packed(n, k), w_KO.dtype)
    out[:k, :n] = w_KO
    return out


def _bounds(index: Any, extent: int, multiple: int) -> list[Any]:
    return [index < extent] if extent % multiple else []


def _guarded(conditions: list[Any], value: Any, dtype: str) -> Any:
    if not conditions:
        return value
    return tirx.if_then_else(tirx.all(*conditions), value, zero(dtype))


def _product(
    row: Any, w: te.Tensor, sizes: tuple[int, int, int], a: Conv2d | Dense, family: str
) -> te.Tensor:
    m, n, k = sizes
    staged = te.compute((_up(m, PAD_M), _up(k, PAD_K)), row, name=ROWS)
    depth = te.reduce_axis((0, _up(k, PAD_K)), "k")

    def summed(value: Any) -> Any:
        return value.astype(a.result) if a.result else value

    return te.compute(
        (_up(m, PAD_M), _up(n, PAD_N)),
        lambda i, j: te.sum(summed(staged[i, depth]) * summed(w[depth, j]), axis=[depth]),
        name="gemm",
        attrs={base.FAMILY: family, M: m, N: n},
    )


class GemmTemplate:
    """See the module."""

    name = "cuda.gemm"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        anchor = base.find_family(base.blocks(base.new_schedule(func)), FAMILY)
        if anchor is None:
            return None
        notes = anchor.annotations
        m, n = int(notes[M]), int(notes[N])
        order = sorted(TILES, key=lambda t: estimate(t, m, n, gpu_of(hardware)))
        return [_schedule(func, t) for t in (order[:8] if tunable else order[:1])]


def _schedule(func: PrimFunc, t: Tile) -> Schedule:
    sch = base.new_schedule(func)
    block = base.find_family(base.blocks(sch), FAMILY)
    assert block is not None
    gemm = block.rv
    rows = sch.get_sblock(ROWS)
    base.inline_producers(sch, gemm, keep=(ROWS,))
    out = base.detach_output(sch, gemm)
    flatten(sch, out)
    columns = sch.cache_read(gemm, 1, "shared")
    sch.set_scope(rows, 0, "shared")
    m, n, k = sch.get_loops(gemm)
    m0, m1, m2 = sch.split(m, [None, t.bm // t.tm, t.tm])
    n0, n1, n2 = sch.split(n, [None, t.bn // t.tn, t.tn])
    k0, k1, k2 = sch.split(k, [None, BK // 4, 4])
    sch.reorder(m0, n0, m1, n1, k0, k1, k2, m2, n2)
    sch.bind(sch.fuse(m0, n0), "blockIdx.x")
    thread = sch.fuse(m1, n1)
    sch.bind(thread, "threadIdx.x")
    sch.set_scope(gemm, 0, "local")
    sch.reverse_compute_at(out, thread, preserve_unit_loops=True)
    for staged in (rows, columns):
        sch.compute_at(staged, k0, preserve_unit_loops=True)
        _cooperate(sch, staged, t.threads)
    for operand, at in ((0, k1), (1, k2)):
        local = sch.cache_read(gemm, operand, "local")
        sch.compute_at(local, at, preserve_unit_loops=True)
        *_, outer, inner = sch.get_loops(local)
        sch.unroll(outer)
        base.split_vector(sch, inner, 4, parallel=False)
    for loop in (k1, k2, m2, n2):
        sch.unroll(loop)
    *_, row, inner = sch.get_loops(out)
    sch.unroll(row)
    base.split_vector(sch, inner, 4, parallel=False)
    sch.decompose_reduction(gemm, k0)
    return sch


def flatten(sch: Schedule, out: Any) -> None:
    """The epilogue over (m, n), as the product has them."""
    extents = base.read_block(sch, out).extents
    if len(extents) == 2:
        return

    def flat(*at: Any) -> list[Any]:
        i = at[0]
        for index, extent in zip(at[1:-1], extents[1:-1], strict=True):
            i = i * extent + index
        return [i, at[-1]]

    sch.transform_block_layout(out, tirx.IndexMap.from_func(flat, ndim=len(extents)))


def _cooperate(sch: Schedule, staged: Any, threads: int) -> None:
    """A tile copied by all threads of the block, four elements each where they are enough."""
    fused = sch.fuse(*sch.get_loops(staged)[-2:])
    extent = base.loop_extent(sch, fused)
    width = 4 if extent % (4 * threads) == 0 else 1
    steps, thread, vector = sch.split(fused, [None, threads, width])
    sch.unroll(steps)
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(vector)
