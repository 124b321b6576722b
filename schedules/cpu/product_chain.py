"""Products in a row as one kernel: some rows go through all of them before the next rows begin.

Nothing of the library fuses products; a rule of the user's can (``anchors = true``). The rows of
every product lie in registers while it sums up, over all its columns, and then in a scratch row
that the next one reads. That is quick as long as a row is narrow: one that is wider than the
registers spills in every step of the sum, which no estimate tells, and measuring does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base
from tvmfuse.schedules.cpu.contraction import register_limit


class ProductChainTemplate:
    """At least two products with one sum each, and element-wise operators between and behind."""

    name = "cpu.product_chain"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        sch = base.new_schedule(func)
        found = base.blocks(sch)
        products = [b for b in found if "R" in b.kinds]
        if len(products) < 2 or not _is_chain(found):
            return None
        if found[-1] is products[-1]:
            last = sch.cache_write(found[-1].rv, 0, "global")
            order = [*(b.rv for b in found), last]
        else:
            order = [b.rv for b in found]
        order = _with_accumulators(sch, order, [b.rv for b in products])
        *rows, _ = sch.get_loops(order[-1])
        widest = max(b.spatial[-1] for b in products)
        limit = max(1, register_limit(hardware, max(1, widest // hardware.lanes())))
        fused = sch.fuse(*rows) if len(rows) > 1 else rows[0]
        sizes = base.divisors(base.loop_extent(sch, fused), limit)
        tile = base.pick(sch, sizes, sizes[-1], tunable)
        outer, _ = sch.split(fused, [None, tile])
        sch.parallel(outer)
        for block in reversed(order[:-1]):
            sch.compute_at(block, outer)
            sch.set_scope(block, 0, "local")
        for block in order:
            _schedule_inside(sch, block, outer, hardware)
        return [sch]


def _is_chain(found: Sequence[base.Block]) -> bool:
    """Rows and columns in every block, and at most one sum, which comes last."""
    kinds = {b.kinds for b in found}
    rows = {b.spatial[:-1] for b in found}
    return len(rows) == 1 and all(
        len(k) > 1 and k.count("R") <= 1 and "O" not in k and k.rstrip("R").count("R") == 0
        for k in kinds
    )


def _with_accumulators(sch: Schedule, order: list[Any], products: list[Any]) -> list[Any]:
    """Let every product sum up in a buffer of its own, with a copy behind."""
    names = {str(sch.get(p).name_hint) for p in products}
    found = []
    for block in order:
        if str(sch.get(block).name_hint) in names:
            found += [block, sch.cache_write(block, 0, "local")]
        else:
            found.append(block)
    return found


def _schedule_inside(sch: Schedule, block: Any, outer: Any, hardware: Hardware) -> None:
    """Vectorise the columns of one block; unroll rows and columns inside a sum."""
    depth = base.depth_in(sch, block, outer)
    loops = sch.get_loops(block)[depth:]
    summed = "R" in base.read_block(sch, block).kinds
    *rows, columns = loops[:-1] if summed else loops
    width = base.vector_width(base.loop_extent(sch, columns), hardware.lanes())
    across, lanes = sch.split(columns, [None, width])
    if summed:
        sch.reorder(loops[-1], *rows, across, lanes)
        sch.vectorize(lanes)
        for loop in (*rows, across):
            sch.unroll(loop)
        sch.decompose_reduction(block, loops[-1])
    else:
        sch.vectorize(lanes)
