"""Element-wise kernels, broadcasts, transposes, copies and concatenations."""

from __future__ import annotations

import math

from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base


class InjectiveTemplate:
    """All producers inlined into the outputs; outer axes parallel, innermost axis vectorised."""

    name = "cpu.injective"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        sch = base.elementwise(func)
        if sch is None:
            return None
        for block in base.blocks(sch):
            _schedule_block(sch, block, hardware)
        return [sch]


def _schedule_block(sch: Schedule, block: base.Block, hardware: Hardware) -> None:
    loops = sch.get_loops(block.rv)
    if not loops:
        return
    lanes = hardware.lanes()
    total, inner = math.prod(block.extents), block.extents[-1]
    if len(loops) > 1 and base.vector_width(inner, lanes) >= min(lanes, 8):
        *outer, last = loops
        base.split_vector(sch, last, lanes, parallel=False)
        sch.parallel(sch.fuse(*outer))
        return
    if same_order(sch, block):
        base.split_vector(sch, sch.fuse(*loops), base.vector_width(total, lanes), parallel=True)
        return
    sch.parallel(sch.fuse(*loops[: max(1, len(loops) - 1)]))


def same_order(sch: Schedule, block: base.Block) -> bool:
    """Whether every access runs through its buffer in the order of the loops."""
    stmt = sch.get(block.rv)
    axes = [v.var for v in stmt.iter_vars]
    regions = [*stmt.reads, *stmt.writes]
    return all(
        len(r.region) == len(axes)
        and all(
            i.min.same_as(a) and base.as_int(i.extent) == 1
            for i, a in zip(r.region, axes, strict=True)
        )
        and tuple(base.as_int(e) for e in r.source.shape) == block.extents
        for r in regions
    )
