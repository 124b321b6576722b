"""Chains of reductions along the innermost axis: softmax, layer norm, mean over the last axis.

All blocks of the chain are computed row by row, rows in parallel; sums run in vector partials.
"""

from __future__ import annotations

import math
from typing import Any

from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base


class RowReductionTemplate:
    """See the module docstring."""

    name = "cpu.row_reduction"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        found = base.blocks(base.new_schedule(func))
        reductions = [b for b in found if "R" in b.kinds]
        if not reductions or any(-1 in b.extents for b in found):
            return None
        if any(b.kinds.lstrip("S").strip("R") for b in reductions):
            return None  # reduced axes must be the innermost ones
        rows = {b.spatial for b in reductions}
        if len(rows) != 1 or len(found[-1].spatial) < len(rows.pop()):
            return None
        schedule = _schedule(func, hardware)
        return None if schedule is None else [schedule]


def _schedule(func: PrimFunc, hardware: Hardware) -> Schedule | None:
    sch = base.new_schedule(func)
    found = base.blocks(sch)
    n_rows = len(next(b for b in found if "R" in b.kinds).spatial)
    sums = {b.name: 0 for b in found if "R" in b.kinds}
    for block in found:
        if "R" in block.kinds:
            partial = vector_partials(sch, block, hardware.lanes())
            sums |= {} if partial is None else {str(sch.get(partial).name_hint): 1}
    blocks = [b.rv for b in base.blocks(sch)]
    out = blocks[-1]
    loops = sch.get_loops(out)
    # A reduction of everything leaves one value, and its last block no loop.
    row = sch.fuse(*loops[:n_rows]) if n_rows else sch.add_unit_loop(loops[0] if loops else out)
    sch.parallel(row)
    for block in reversed(blocks[:-1]):
        sch.compute_at(block, row, preserve_unit_loops=True)
    for block in blocks:
        wide = sums.get(str(sch.get(block).name_hint))
        if wide is not None and _wide_axes(sch, block, row) > wide:
            return None  # products in a row: one row needs all of another one's sums
        vectorize_inner(sch, block, row, hardware.lanes())
    return sch


def _wide_axes(sch: Schedule, block: Any, row: Any) -> int:
    """How many axes that are not summed have more than one element inside of a row."""
    loops = sch.get_loops(block)[base.depth_in(sch, block, row) :]
    kinds = base.read_block(sch, block).kinds
    kept = loops[: len(loops) - kinds.count("R")] if kinds.endswith("R") else []
    return sum(base.loop_extent(sch, loop) != 1 for loop in kept)


def vector_partials(sch: Schedule, block: base.Block, lanes: int) -> Any | None:
    """Split the reduction into ``lanes`` independent partial results, reduced at the end.

    Returns the block that computes them, None where the reduction stays as it is.
    """
    loops = sch.get_loops(block.rv)[-len(block.reduction) :]
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    width = base.vector_width(math.prod(block.reduction), lanes)
    if width == 1 or math.prod(block.reduction) == width:
        return None
    _, inner = sch.split(fused, [None, width])
    return sch.rfactor(inner, len(block.spatial))


def vectorize_inner(sch: Schedule, block: Any, row: Any, lanes: int) -> None:
    """Vectorise what one block computes inside of the loop ``row``."""
    depth = base.depth_in(sch, block, row)
    loops = sch.get_loops(block)[depth:]
    kinds = base.read_block(sch, block).kinds
    if len(loops) <= kinds.count("R"):
        return
    if kinds[-1] == "R":
        _vectorize_partial(sch, block, loops, kinds)
        return
    base.split_vector(sch, loops[-1], lanes, parallel=False)


def _vectorize_partial(sch: Schedule, block: Any, loops: list[Any], kinds: str) -> None:
    """Move the spatial partial axis of an rfactor block inside its reduction and vectorise it."""
    n_reduce = kinds.count("R")
    spatial, reduce_loops = loops[:-n_reduce], loops[-n_reduce:]
    # The axis of the partial results stands in front of the rows', which have one element here.
    wide = [loop for loop in spatial if base.loop_extent(sch, loop) != 1]
    if not wide:
        return
    sch.reorder(*reduce_loops, wide[-1])
    sch.vectorize(wide[-1])
    sch.decompose_reduction(block, reduce_loops[0])
