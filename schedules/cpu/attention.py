"""Attention on CPU as one kernel: its block sizes by a model of the core, and its template.

The kernel itself is written in `attention_kernel`.
"""

from __future__ import annotations

import math

from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base
from tvmfuse.schedules.anchor import Attention
from tvmfuse.schedules.cpu.attention_frame import Blocking, round_up
from tvmfuse.schedules.cpu.attention_kernel import FAMILY, attention
from tvmfuse.schedules.cpu.contraction import register_limit
from tvmfuse.schedules.variant import WrittenVariant

FEW_ROWS = 4  # up to so many query rows scores are dot products over keys as they are stored
# Packed keys and values of a block take at most this part of L2: every tile of rows streams them,
# and 512 keys of 64 elements (256 KiB) ran a third slower than 256 on a core with 1 MiB.
_BLOCK_OF_L2 = 8
RTOL = 2e-5
_HALF_RTOL = 2e-2  # the output's own rounding in float16 and bfloat16, with room for P's


def attention_variants(a: Attention, hardware: Hardware) -> tuple[WrittenVariant, ...]:
    """Kernels for ``a`` in ascending order of estimated time."""
    rtol = RTOL if a.dtype == "float32" else _HALF_RTOL
    found = [
        WrittenVariant(
            b.name, a, lambda b=b: attention(a, b, hardware), _cycles(a, b, hardware), rtol
        )
        for b in blockings(a, hardware)
    ]
    return tuple(sorted(found, key=lambda v: v.cycles))


def blockings(a: Attention, hardware: Hardware) -> list[Blocking]:
    """The sizes worth trying: tile rows by their fill, blocks of keys by the caches."""
    lanes = hardware.lanes()
    padded = round_up(a.SK, lanes)
    v = 4 if hardware.vector_registers >= 32 else 2
    tq = _tile_rows(a.SQ, register_limit(hardware, v))
    all_tiles = math.ceil(a.SQ / tq)
    if a.SQ <= FEW_ROWS and _reads_straight(a):
        blocks = {min(padded, size) for size in (256, 1024)}
        return [Blocking(a.SQ, v, 1, keys, True) for keys in sorted(blocks)]
    causal = any(s.kind == "causal" for s in a.steps)
    most = max(lanes, hardware.l2_bytes // _BLOCK_OF_L2 // (4 * (a.D + a.DV)))
    limits = {min(size, most) for size in ((64, 128, 256) if causal else (128, 256, 512))}
    blocks = {round_up(math.ceil(padded / math.ceil(padded / size)), lanes) for size in limits}
    pieces = {_tiles_in_piece(all_tiles, n) for n in (1, 2, 4, 8)}
    return [
        Blocking(tq, v, tiles, keys, False) for keys in sorted(blocks) for tiles in sorted(pieces)
    ]


def _tile_rows(rows: int, limit: int) -> int:
    if rows <= limit:
        return rows
    return min(
        range(limit, max(1, limit // 2), -1),
        key=lambda t: math.ceil(rows / t) * t * (1 + 0.5 / t),
    )


def _tiles_in_piece(tiles: int, pieces: int) -> int:
    return math.ceil(tiles / min(tiles, pieces))


def _reads_straight(a: Attention) -> bool:
    """Whether rows of keys and values are contiguous."""
    return a.k.column == 1 and a.v.column == 1


def _cycles(a: Attention, b: Blocking, hardware: Hardware) -> float:
    """Estimated cycles of one call: products, exponentials, packing, and balance."""
    lanes, matrices = hardware.lanes(), math.prod(a.lead)
    blocks = math.ceil(a.SK / b.keys)
    pieces = math.ceil(a.SQ / (b.tq * b.tiles))
    rows = b.tq * b.tiles * pieces
    seen = 0.5 + 0.5 / blocks if any(s.kind == "causal" for s in a.steps) else 1.0
    keys = blocks * b.keys * seen
    chains = max(1.0, 8 / (b.tq * b.v))  # fewer than 8 accumulators leave the FMA unit idle
    products = rows * keys * (a.D + round_up(a.DV, lanes)) / lanes * chains
    if b.direct:
        products = rows * keys * (a.D / lanes * 1.5 + 8 + a.DV / lanes * 1.5)
    softmax = rows * keys / lanes * 20 + rows * blocks * 60
    packing = 0.0 if b.direct else pieces * a.SK * (a.D * 1.0 + a.DV / lanes * 3)
    balance = base.imbalance(matrices * pieces, hardware.cores)
    return (products + softmax + packing) * matrices / hardware.cores * balance


class AttentionTemplate:
    """The kernel is written with its blocks; what is left is to run its pieces in parallel."""

    name = "cpu.attention"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        sch = base.new_schedule(func)
        block = base.find_family(base.blocks(sch), FAMILY)
        if block is None:
            return None
        loops = sch.get_loops(block.rv)
        sch.parallel(sch.fuse(*loops) if len(loops) > 1 else loops[0])
        return [sch]
