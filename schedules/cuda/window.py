"""Short sums whose results lie side by side, pooling windows above all: a thread for each result.

A thread takes four neighbouring results where there are enough of them, and reads their terms as
vectors; the window is written out, its sums stay in registers, and what is computed of them follows
in the same thread.
"""

from __future__ import annotations

import math

from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.hardware.gpus import Gpu
from tvmfuse.schedules import base
from tvmfuse.schedules.cuda.binding import bind_rows, gpu_of

_WRITTEN_OUT = 32  # terms of a window up to which its loops are unrolled
_LANES = 4


class WindowTemplate:
    """Takes one sum with element-wise work around it; a result is summed by one thread."""

    name = "cuda.window"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        sch = base.new_schedule(func)
        found = base.blocks(sch)
        sums = [b for b in found if "R" in b.kinds]
        if len(sums) != 1 or not all(base.is_plain(sch, b) for b in found):
            return None
        mine = sums[0]
        if mine.kinds.lstrip("S").strip("R") or not mine.spatial:
            return None
        if math.prod(found[-1].spatial) != math.prod(mine.spatial):
            return None
        return [_schedule(sch, mine, gpu_of(hardware))]


def _schedule(sch: Schedule, mine: base.Block, gpu: Gpu) -> Schedule:
    out = base.detach_output(sch, mine.rv)
    base.inline_producers(sch, mine.rv, keep=())
    spatial = base.read_block(sch, out).spatial
    total = math.prod(spatial)
    lanes = _LANES if spatial[-1] % _LANES == 0 and _fills(total // _LANES, gpu) else 1
    *outer, last = sch.get_loops(out)
    last, vector = sch.split(last, [None, lanes])
    cut = max(0, len(outer) - 1)
    thread = bind_rows(sch, outer[:cut], [*outer[cut:], last], (outer or [last])[0])
    sch.compute_at(mine.rv, thread, preserve_unit_loops=True)
    sch.set_scope(mine.rv, 0, "local")
    sch.vectorize(vector)
    _write_out(sch, mine, base.depth_in(sch, out, thread))
    return sch


def _fills(threads: int, gpu: Gpu) -> bool:
    return threads >= gpu.sms * gpu.threads_per_sm // 2


def _write_out(sch: Schedule, mine: base.Block, depth: int) -> None:
    """The loops of a thread's sums: terms outside, neighbours as a vector inside."""
    inner = sch.get_loops(mine.rv)[depth:]
    count = len(mine.reduction)
    neighbours, terms = inner[:-count], inner[-count:]
    wide = [loop for loop in neighbours if base.loop_extent(sch, loop) > 1]
    sch.reorder(*terms, *wide)
    for loop in wide:
        sch.vectorize(loop)
    if math.prod(mine.reduction) <= _WRITTEN_OUT:
        for loop in terms:
            sch.unroll(loop)
    sch.decompose_reduction(mine.rv, terms[0])
