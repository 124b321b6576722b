"""The last template: applies to everything, so that no kernel is left as a naive serial loop."""

from __future__ import annotations

from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base


class FallbackTemplate:
    """Each block by itself: leading spatial axes parallel, a trailing spatial axis vectorised."""

    name = "cpu.fallback"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        sch = base.new_schedule(func)
        for block in base.blocks(sch):
            _schedule_block(sch, block, hardware)
        return [sch]


def _schedule_block(sch: Schedule, block: base.Block, hardware: Hardware) -> None:
    loops = sch.get_loops(block.rv)
    if len(loops) != len(block.kinds):
        return  # opaque nests keep their own order
    if base.has_loops(sch, block.rv):
        sch.parallel(sch.fuse(*loops) if len(loops) > 1 else loops[0])
        return  # its inner loops are written, and vectors among them
    leading = 0
    while leading < len(loops) and block.kinds[leading] == "S":
        leading += 1
    if leading == 0:
        return
    if leading == len(loops):
        if len(loops) > 1:
            base.split_vector(sch, loops[-1], hardware.lanes(), parallel=False)
            leading -= 1
        else:
            base.split_vector(sch, loops[-1], hardware.lanes(), parallel=True)
            return
    try:
        sch.parallel(sch.fuse(*loops[:leading]) if leading > 1 else loops[0])
    except ScheduleError:
        return  # a block with carried dependences (scan, sort) is right only in order
