"""A schedule for any kernel that changes nothing but the order of its loops.

It is for running, on a CPU, kernels that were written for another device, to check what they
compute: none of the device's templates takes part in it.
"""

from __future__ import annotations

from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base


def plain_schedule(func: PrimFunc, hardware: Hardware) -> Schedule:
    """Each block by itself: outer axes parallel, the innermost one in vectors inside its sums."""
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
    sch.reorder(*outer, outside, *reduction, inside)
    sch.parallel(sch.fuse(*outer, outside) if outer else outside)
    if reduction:
        sch.decompose_reduction(block.rv, reduction[0])
    elif width > 1:
        sch.vectorize(inside)
        return
    if width > 1:
        sch.vectorize(sch.get_loops(block.rv)[-1])
