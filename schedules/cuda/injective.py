"""Element-wise kernels, broadcasts, transposes, copies and concatenations: a thread an element."""

from __future__ import annotations

import math

from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.hardware.gpus import Gpu
from tvmfuse.schedules import base
from tvmfuse.schedules.cpu.injective import same_order
from tvmfuse.schedules.cuda.binding import bind_spatial, gpu_of, threads_for

_VECTOR_BYTES = 16  # of the widest load and store
_VECTOR_LANES = 4
_VECTOR_TYPES = {"float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}


class InjectiveTemplate:
    """All producers inlined into the outputs, whose elements go to threads.

    Four neighbours go to one thread, in one vector, where every tensor is read in order and there
    are enough elements to keep the device busy.
    """

    name = "cuda.injective"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        sch = base.elementwise(func)
        if sch is None:
            return None
        gpu = gpu_of(hardware)
        found = base.blocks(sch)
        if any(base.has_loops(sch, block.rv) for block in found):
            return None
        for block in found:
            _schedule_block(sch, block, gpu)
        return [sch]


def _schedule_block(sch: Schedule, block: base.Block, gpu: Gpu) -> None:
    loops = sch.get_loops(block.rv)
    if not loops:
        raise ValueError("a scalar: the fallback has one thread do it")
    total = math.prod(block.extents)
    lanes = _lanes(sch, block)
    enough = total // _VECTOR_LANES >= gpu.sms * gpu.threads_per_sm
    if lanes == 1 or not enough:
        bind_spatial(sch, loops, threads_for(total, gpu))
        return
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    outer, inner = sch.split(fused, [None, lanes])
    sch.vectorize(inner)
    bind_spatial(sch, [outer], threads_for(total // lanes, gpu))


def _lanes(sch: Schedule, block: base.Block) -> int:
    """Neighbours that one thread can read and write as vectors."""
    stmt = sch.get(block.rv)
    types = {str(region.source.dtype) for region in (*stmt.reads, *stmt.writes)}
    if not types <= _VECTOR_TYPES.keys() or not same_order(sch, block):
        return 1
    widest = max(_VECTOR_TYPES[t] for t in types)
    most = min(_VECTOR_LANES, _VECTOR_BYTES // widest)
    return base.vector_width(math.prod(block.extents), most)
