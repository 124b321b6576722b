"""Reductions whose innermost output axis is not reduced: depthwise, pooling, mean over space.

Vectors run along the innermost output axis (channels); a tile of neighbouring columns shares each
weight vector and keeps its accumulators in registers.
"""

from __future__ import annotations

import math
from typing import Any

from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc
from tvm.tirx.analysis import undefined_vars

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base

UNROLL_WINDOW = 25  # windows up to 5x5 are unrolled; larger ones stay loops


def find_anchor(sch: Schedule) -> base.Block | None:
    """The only reduction of a kernel, if it leaves the innermost output axis alone."""
    reductions = [b for b in base.blocks(sch) if "R" in b.kinds]
    if len(reductions) != 1 or "S" not in reductions[0].kinds:
        return None
    anchor = reductions[0]
    stmt = sch.get(anchor.rv)
    inner = [v.var for v, k in zip(stmt.iter_vars, anchor.kinds, strict=True) if k == "S"][-1]
    first = stmt.reads[0].region[-1].min
    reads_along = any(v.same_as(inner) for v in undefined_vars(first, []))
    return anchor if reads_along else None


class OuterReductionTemplate:
    """See the module docstring."""

    name = "cpu.outer_reduction"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        anchor = find_anchor(base.new_schedule(func))
        if anchor is None or anchor.extents[-1] == -1:
            return None
        columns = anchor.spatial[-2] if len(anchor.spatial) > 1 else 1
        default = max(base.divisors(columns, hardware.vector_registers // 4))
        return [_schedule(func, default, hardware, tunable)]


def _schedule(func: PrimFunc, columns: int, hardware: Hardware, tunable: bool) -> Schedule:
    sch = base.new_schedule(func)
    anchor = find_anchor(sch)
    assert anchor is not None
    pads = [b.name for b in base.blocks(sch) if b.name.startswith("pad")]
    base.inline_producers(sch, anchor.rv, keep=pads)
    out = base.detach_output(sch, anchor.rv)
    *lead, c = sch.get_loops(out)
    lanes = base.vector_width(base.loop_extent(sch, c), hardware.lanes())
    c_o, c_i = sch.split(c, [None, lanes])
    at, tile = _tile(sch, lead, c_o, c_i, columns, hardware, tunable)
    _compute_in_registers(sch, anchor, at, lanes)
    for loop in tile:
        sch.unroll(loop)
    if lanes > 1:
        sch.vectorize(c_i)
    for name in pads:
        base.pad_parallel(sch, sch.get_sblock(name), hardware.lanes())
    return sch


def _tile(
    sch: Schedule,
    lead: list[Any],
    c_o: Any,
    c_i: Any,
    columns: int,
    hardware: Hardware,
    tunable: bool,
) -> tuple[Any, list[Any]]:
    """Loops (parallel, channel vectors, column tile, lanes); returns (compute-at loop, tile)."""
    if not lead:
        sch.parallel(c_o)
        return c_o, []
    *rows, w = lead
    options = base.divisors(base.loop_extent(sch, w), hardware.vector_registers // 2)
    wanted = columns if columns in options else max(o for o in options if o <= columns)
    w_o, w_i = sch.split(w, [None, base.pick(sch, options, wanted, tunable)])
    outer_pieces = math.prod(base.loop_extent(sch, r) for r in rows)
    if outer_pieces >= 4 * hardware.cores:
        sch.reorder(*rows, w_o, c_o, w_i, c_i)
        sch.parallel(sch.fuse(*rows))
        return c_o, [w_i]
    sch.reorder(*rows, w_o, c_o, w_i, c_i)
    piece = sch.fuse(*rows, w_o, c_o)
    sch.parallel(piece)
    return piece, [w_i]


def _compute_in_registers(sch: Schedule, anchor: base.Block, at: Any, lanes: int) -> None:
    depth = base.depth_of(sch, anchor.rv, at)
    sch.compute_at(anchor.rv, at, preserve_unit_loops=True)
    loops = sch.get_loops(anchor.rv)[depth:]
    kinds = base.read_block(sch, anchor.rv).kinds
    reduce_loops = [lp for lp, k in zip(loops, kinds, strict=True) if k == "R"]
    spatial = [lp for lp, k in zip(loops, kinds, strict=True) if k == "S"]
    sch.reorder(*reduce_loops, *spatial)
    for loop in spatial[:-1]:
        sch.unroll(loop)
    if lanes > 1:
        sch.vectorize(spatial[-1])
    sch.set_scope(anchor.rv, 0, "local")
    if math.prod(anchor.reduction) <= UNROLL_WINDOW:
        for loop in reduce_loops:
            sch.unroll(loop)
    sch.decompose_reduction(anchor.rv, reduce_loops[0])
