"""A schedule for any kernel that changes nothing but the order of its loops.

It is for running, on a CPU, kernels that were written for another device, to check what they
compute: none of the device's templates takes part in it.
"""

from __future__ import annotations

from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base

_ROWS = 8  # of a register tile, one vector wide


def plain_schedule(func: PrimFunc, hardware: Hardware) -> Schedule:
    """Each block by itself: outer axes parallel, the innermost one in vectors inside its sums.

    A few rows are summed at once, as they read the same weights: in the order of its loops, one
    inference of ResNet-50 took 16 s.
    """
    sch = base.new_schedule(func)
    for block in base.blocks(sch):
        trial = sch.copy()
        try:
            _schedule_block(trial, block, hardware)
        except (ScheduleError, RuntimeError, ValueError):
            continue  # it keeps its own order
        sch = trial
    return sch


def _schedule_block(sch: Schedule, block: base.Block, hardware: Hardware) -> None:
    loops = sch.get_loops(block.rv)
    if len(loops) != len(block.kinds) or not set(block.kinds) <= {"S", "R"}:
        return
    if base.has_loops(sch, block.rv) or "S" not in block.kinds:
        return
    pairs = list(zip(loops, block.kinds, strict=True))
    spatial = [x for x, kind in pairs if kind == "S"]
    reduction = [x for x, kind in pairs if kind == "R"]
    *outer, last = spatial
    width = base.vector_width(base.loop_extent(sch, last), hardware.lanes())
    outside, inside = sch.split(last, [None, width])
    rows = []
    if outer and reduction:  # several rows read the same weights
        extent = base.loop_extent(sch, outer[-1])
        outer[-1], row = sch.split(outer[-1], [None, max(base.divisors(extent, _ROWS))])
        rows.append(row)
    sch.reorder(*outer, outside, *reduction, *rows, inside)
    sch.parallel(sch.fuse(*outer, outside) if outer else outside)
    for row in rows:
        sch.unroll(row)
    if width > 1:
        sch.vectorize(inside)
    if reduction:
        sch.decompose_reduction(block.rv, reduction[0])
