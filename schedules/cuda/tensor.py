"""Convolutions and products of halves on tensor cores, summed in float32.

The implicit GEMM of `tvmfuse.schedules.cuda.gemm` with fragments of 16 x 16 in place of registers:

    block: bm x bn results; its warps have wm x wn of them each
        for each bk of k: stage a[bm, bk] and b[bk, bn] in shared memory, then for each 16 of k load
        the warp's fragments of both and multiply them all
    for each 16 rows of a warp: store its sums to shared memory, and run the epilogue on them

How a fragment's elements lie in the registers of a warp is not ours to know, so the epilogue reads
the sums back from shared memory, a strip of every warp at a time, in rows that go to memory whole.
Rows of the staged tiles are padded by 16 bytes: eight rows of a fragment then begin in different
banks. Halves are copied eight at a time, 16 bytes, where rows allow it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.hardware.gpus import Gpu
from tvmfuse.schedules import base
from tvmfuse.schedules.anchor import Conv2d, Dense
from tvmfuse.schedules.cuda.binding import gpu_of
from tvmfuse.schedules.cuda.fragments import EDGE, FRAGMENTS, fragments
from tvmfuse.schedules.cuda.gemm import PAD_K, ROWS, M, N, flatten

FAMILY = "tensor_gemm"
# First compute capability whose tensor cores take the type, and sums of float32 over it.
_SINCE = {"float16": 75, "bfloat16": 80}
_PAD = 8  # halves behind a staged row: 16 bytes, four banks
_PAD_SUMS = 4  # floats behind a row of sums
_WIDE = 8  # halves of one copy
_MAX_FRAGMENTS = 8  # of sums in a warp, 8 registers a thread each: 64 of 255, without spills


@dataclass(frozen=True)
class Tile:
    """Results of one block (``bm`` x ``bn``) and of one warp (``wm`` x ``wn``), terms a stage."""

    bm: int
    bn: int
    wm: int
    wn: int
    bk: int

    @property
    def warps(self) -> int:
        """Warps of one block."""
        return self.bm // self.wm * (self.bn // self.wn)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one block: both staged tiles, and a strip of sums of every warp.

        TVM keeps the strips between those of the first and the last row of warps as well.
        """
        staged = self.bm * (self.bk + _PAD) + self.bk * (self.bn + _PAD)
        strips = (self.bm - self.wm) // EDGE + 1
        return 2 * staged + 4 * strips * EDGE * (self.bn // self.wn) * (self.wn + _PAD_SUMS)


TILES = tuple(
    Tile(bm, bn, wm, wn, bk)
    for bm in (16, 32, 64, 128)
    for bn in (32, 64, 128)
    for wm in (16, 32, 64)
    for wn in (16, 32, 64)
    for bk in (16, 32, 64)
    if bm % wm == 0 and bn % wn == 0
    if 2 <= bm // wm * (bn // wn) <= 8 and wm * wn <= _MAX_FRAGMENTS * EDGE * EDGE
)


def on_tensor_cores(a: Conv2d | Dense, gpu: Gpu) -> bool:
    """Whether the device has matrix units for the operands' type."""
    since = _SINCE.get(a.dtype)
    return since is not None and a.result == "float32" and gpu.cc >= since


def estimate(t: Tile, m: int, n: int, k: int, gpu: Gpu) -> float:
    """Relative time of one call: as in the GEMM of the CUDA cores, in fragments.

    A model for the order of tiles, never calibrated on a device.
    """
    blocks = math.ceil(m / t.bm) * math.ceil(n / t.bn)
    mine = math.ceil(blocks / gpu.sms)
    room = min(
        gpu.shared_per_sm_bytes // t.shared_bytes, gpu.threads_per_sm // (t.warps * gpu.warp)
    )
    together = max(1, min(mine, room))
    busy = min(1.0, together * t.warps / 8)
    rows, columns = t.wm // EDGE, t.wn // EDGE
    multiply = t.warps * rows * columns
    loads = t.warps * (rows + columns)  # fragments from shared memory
    staged = (t.bm + t.bn) / EDGE  # fragments from memory
    stages = math.ceil(k / t.bk)
    stage = (t.bk // EDGE) * (multiply + 0.5 * loads + staged) / busy + 8
    return mine * (stages * stage + 2 * multiply)


def ranked(m: int, n: int, k: int, gpu: Gpu) -> list[Tile]:
    """Tiles that fit the device, the model's favourite first."""
    fits = [
        t for t in TILES if t.shared_bytes <= gpu.shared_static_bytes and _staged(k) % t.bk == 0
    ]
    return sorted(fits, key=lambda t: estimate(t, m, n, k, gpu))


def _staged(k: int) -> int:
    return math.ceil(k / PAD_K) * PAD_K


class TensorTemplate:
    """See the module."""

    name = "cuda.tensor"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        anchor = base.find_family(base.blocks(base.new_schedule(func)), FAMILY)
        if anchor is None:
            return None
        m, n = (int(anchor.annotations[key]) for key in (M, N))
        order = ranked(m, n, math.prod(anchor.reduction), gpu_of(hardware))
        return [_schedule(func, t) for t in (order[:8] if tunable else order[:1])]


def _schedule(func: PrimFunc, t: Tile) -> Schedule:
    sch = base.new_schedule(func.with_attr(FRAGMENTS, 1))
    block = base.find_family(base.blocks(sch), FAMILY)
    assert block is not None
    gemm = block.rv
    base.inline_producers(sch, gemm, keep=(ROWS,))
    rows = sch.get_sblock(ROWS)
    dtype = str(sch.get(rows).writes[0].source.dtype)
    names = fragments(dtype)
    out = base.detach_output(sch, gemm)
    flatten(sch, out)
    sums = sch.cache_write(gemm, 0, "wmma.accumulator")
    sch.set_scope(sums, 0, "local")  # so that only the warp's own are stored; shared memory at last
    wn = t.wn
    sch.transform_layout(sums, ("write", 0), lambda i, j: (i // EDGE, j // wn, i % EDGE, j % wn))
    columns = sch.cache_read(gemm, 1, "shared")
    sch.set_scope(rows, 0, "shared")
    left = sch.cache_read(gemm, 0, "wmma.matrix_a")
    right = sch.cache_read(gemm, 1, "wmma.matrix_b")
    m, n, k = sch.get_loops(gemm)
    m0, m1, m2, m3 = sch.split(m, [None, t.bm // t.wm, t.wm // EDGE, EDGE])
    n0, n1, n2, n3 = sch.split(n, [None, t.bn // t.wn, t.wn // EDGE, EDGE])
    k0, k1, k2 = sch.split(k, [None, t.bk // EDGE, EDGE])
    sch.reorder(m0, n0, m1, n1, k0, k1, m2, n2, m3, n3, k2)
    sch.bind(sch.fuse(m0, n0), "blockIdx.x")
    warp = sch.fuse(m1, n1)
    sch.bind(warp, "threadIdx.y")
    for loop in (k1, m2, n2):
        sch.unroll(loop)
    sch.annotate(k0, "disable_unroll", True)  # the compiler's own took 255 registers and spilled
    for fragment, name in ((left, names["a"]), (right, names["b"])):
        sch.compute_at(fragment, k1, preserve_unit_loops=True)
        sch.tensorize(_fragment_loop(sch, fragment), name)
    for staged in (rows, columns):
        sch.compute_at(staged, k0, preserve_unit_loops=True)
        _copy(sch, staged, t)
    zero = sch.decompose_reduction(gemm, k0)
    _epilogue(sch, out, sums, warp, t, names)  # behind it TVM moves no block any more
    sch.tensorize(sch.get_loops(zero)[-2], names["fill"])
    sch.tensorize(m3, names["multiply"])
    return sch


def _fragment_loop(sch: Schedule, block: Any) -> Any:
    """Split the last two loops of a copy into fragments; the loop to tensorize."""
    i, j = sch.get_loops(block)[-2:]
    i0, i1 = sch.split(i, [None, EDGE])
    j0, j1 = sch.split(j, [None, EDGE])
    sch.reorder(i0, j0, i1, j1)
    sch.unroll(i0)
    sch.unroll(j0)
    return i1


def _epilogue(
    sch: Schedule, out: Any, sums: Any, warp: Any, t: Tile, names: dict[str, str]
) -> None:
    """Strips of 16 rows: sums to shared memory, and from there through the epilogue."""
    for block in (sums, out):
        sch.reverse_compute_at(block, warp, preserve_unit_loops=True)
    i, j = sch.get_loops(out)[-2:]
    strip, row = sch.split(i, [None, EDGE])
    sch.compute_at(sums, strip, preserve_unit_loops=True)
    sch.set_scope(sums, 0, "shared")
    stored = sch.blockize(_fragment_loop(sch, sums))
    sch.storage_align(stored, 0, axis=-2, factor=EDGE // 2, offset=_PAD_SUMS)
    sch.tensorize(stored, names["store"])
    fused = sch.fuse(row, j)
    steps, lane, vector = sch.split(fused, [None, 32, 4 if t.wn >= 8 else 1])
    sch.unroll(steps)
    sch.bind(lane, "threadIdx.x")
    sch.vectorize(vector)


def _copy(sch: Schedule, staged: Any, t: Tile) -> None:
    """A tile copied by all threads of the block, eight halves each where they are enough."""
    sch.storage_align(staged, 0, axis=-2, factor=2 * _PAD, offset=_PAD)
    fused = sch.fuse(*sch.get_loops(staged)[-2:])
    extent = base.loop_extent(sch, fused)
    width = _WIDE
    while width > 1 and extent % (width * 32 * t.warps):
        width //= 2
    steps, warp, lane, vector = sch.split(fused, [None, t.warps, 32, width])
    sch.unroll(steps)
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.vectorize(vector)
