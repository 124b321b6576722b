"""Transposes, and element-wise kernels that read a tensor across its rows: a tile at a time.

Read in the order of the result, a transposed tensor costs one cache line an element, and rows whose
distance is a power of two (or a multiple of 4 KiB, as those of a 224 x 224 image are) push one
another out of the cache before their lines are used up. A tile is therefore copied into a buffer of
its own in the order in which it lies, whole vectors at a time, and read across its rows there.
"""

from __future__ import annotations

import math

from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc, Var

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base

ALONG = 64  # elements of one row of the source in a tile: four cache lines, so that it is streamed
LEAST_BYTES = 64 << 10  # a tensor that fits the first-level caches gains nothing


class TransposeTemplate:
    """One result, one operand of which has another innermost axis than it."""

    name = "cpu.transpose"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        sch = base.elementwise(func)
        rest = [] if sch is None else base.blocks(sch)
        if sch is None or len(rest) != 1:
            return None
        lanes = hardware.lanes()
        crossed = _crossed(sch, rest[0], lanes)
        if crossed is None:
            return None
        _schedule(sch, rest[0], *crossed, lanes)
        return [sch]


def _crossed(sch: Schedule, block: base.Block, lanes: int) -> tuple[int, int] | None:
    """Which operand is read across its rows, and which axis of the result is its innermost."""
    stmt = sch.get(block.rv)
    axes = [v.var for v in stmt.iter_vars]
    if base.vector_width(block.extents[-1], lanes) < min(8, lanes):
        return None
    for position, region in enumerate(stmt.reads):
        indices = [r.min for r in region.region]
        if not indices or any(
            base.as_int(r.extent) != 1 or not isinstance(r.min, Var) for r in region.region
        ):
            continue
        axis = next((i for i, a in enumerate(axes) if a.same_as(indices[-1])), len(axes) - 1)
        size = math.prod(base.as_int(e) for e in region.source.shape) * 4
        whole = base.vector_width(block.extents[axis], lanes) >= 4
        along = any(index.same_as(axes[-1]) for index in indices)
        if axis != len(axes) - 1 and along and whole and size >= LEAST_BYTES:
            return position, axis
    return None


def _schedule(sch: Schedule, block: base.Block, operand: int, axis: int, lanes: int) -> None:
    staged = sch.cache_read(block.rv, operand, "local")
    *outer, last = sch.get_loops(block.rv)
    along = outer.pop(axis)
    vector = base.vector_width(block.extents[axis], lanes)
    width = max(d for d in base.divisors(block.extents[axis], ALONG) if d % vector == 0)
    a_o, a_i = sch.split(along, [None, width])
    l_o, l_i = sch.split(last, [None, base.vector_width(block.extents[-1], lanes)])
    sch.reorder(*outer, a_o, l_o, a_i, l_i)
    sch.compute_at(staged, l_o, preserve_unit_loops=True)
    sch.vectorize(l_i)
    base.split_vector(sch, sch.get_loops(staged)[-1], vector, parallel=False)
    sch.parallel(sch.fuse(*outer, a_o))
