"""A dense product with a norm of its rows behind it, as one kernel.

    s[r, o] = epilogue(sum_k x[r, k] * w[k, o]);   y[r, :] = norm(s[r, :])

A row can be normalised only when all of its columns are there, so a parallel piece is a strip of
whole rows: the product fills the strip in scratch memory of the thread, register tile by register
tile as everywhere (`tvmfuse.schedules.cpu.contraction`), and the norm reads it back from the cache
while it is warm. The price is that columns are not spread over the threads any more, and that every
strip reads all of the weights: :func:`lost_share` says how much that costs.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base
from tvmfuse.schedules.anchor import Dense
from tvmfuse.schedules.cpu.block_sums import in_blocks
from tvmfuse.schedules.cpu.contraction import (
    FAMILY,
    PAD_BLOCK,
    Extents,
    Tiling,
    best_tiling,
    estimate_cycles,
    extents_of,
    lanes_for,
    padded_columns,
    register_limit,
    tile_anchor,
)
from tvmfuse.schedules.cpu.row_reduction import vector_partials, vectorize_inner


@dataclass(frozen=True)
class _Form:
    """Blocks of the kernel by name.

    Parameters
    ----------
    anchor
        The product.
    summed
        What the norm reads: the last block in front of it, which may be the product itself.
    behind
        The blocks behind ``summed`` in order; the last one is the kernel's result.
    """

    anchor: base.Block
    summed: str
    behind: tuple[str, ...]


class NormedDenseTemplate:
    """See the module docstring."""

    name = "cpu.normed_dense"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        form = _form(base.new_schedule(func))
        if form is None:
            return None
        extents = extents_of(form.anchor)
        if not tunable:
            return [_schedule(func, best_strip(extents, hardware), extents, hardware, False)]
        return [
            _schedule(func, tiling, extents, hardware, True)
            for v in _vectors(extents, hardware)
            if (tiling := _best(extents, hardware, v)[1])
        ]


def _form(sch: Schedule) -> _Form | None:
    """What the kernel is made of; None unless it is a product with a norm of its rows."""
    found = base.blocks(sch)
    anchor = base.find_family(found, FAMILY)
    if anchor is None or len(anchor.reduction) != 1:
        return None
    sums = [b for b in found if "R" in b.kinds and b.name != anchor.name]
    if not sums or any(-1 in b.extents for b in found):
        return None
    shape = found[-1].spatial
    if not all(_sums_rows(b, shape) for b in sums):
        return None  # over other axes than the last one
    front = _in_front(sch, anchor.rv)
    names = [b.name for b in found]
    reads = {str(sch.get(p).name_hint) for p in sch.get_producers(sums[0].rv)}
    if len(reads) != 1 or "R" in found[-1].kinds:
        return None
    (summed,) = reads
    if summed in front or shape[-1] != anchor.spatial[-1]:
        return None
    behind = names[names.index(summed) + 1 :]
    if sums[0].name not in behind or anchor.name in behind:
        return None
    return _Form(anchor, summed, tuple(behind))


def _in_front(sch: Schedule, block: Any) -> set[str]:
    """Names of all blocks whose values a block needs."""
    found: set[str] = set()
    for producer in sch.get_producers(block):
        found |= {str(sch.get(producer).name_hint), *_in_front(sch, producer)}
    return found


def is_row_norm(func: PrimFunc) -> bool:
    """Whether a kernel is sums along the last axis and one element-wise block behind them."""
    found = base.blocks(base.new_schedule(func))
    *sums, last = found or [None]
    return (
        last is not None
        and bool(sums)
        and "R" not in last.kinds
        and all(_sums_rows(b, last.spatial) for b in sums)
    )


def _sums_rows(block: base.Block, shape: tuple[int, ...]) -> bool:
    """Whether a block sums along the rows of a tensor; leading axes of one do not count."""
    return tight(block.spatial) == tight(shape[:-1]) and block.reduction == shape[-1:]


def tight(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without leading axes of one element: the rows are the same."""
    return tuple(itertools.dropwhile(lambda extent: extent == 1, shape))


def dense_extents(product: Dense, hardware: Hardware) -> Extents:
    """What :func:`extents_of` will say of the product's block."""
    lanes = lanes_for(product.O, hardware)
    columns = padded_columns(product.M, hardware)
    vectors = product.O // lanes
    return Extents(math.prod(product.lead), columns, vectors, lanes, product.K, 4 * product.K)


def lost_share(extents: Extents, hardware: Hardware) -> float:
    """Estimated part of the product's time that whole rows in one piece cost it.

    Zero where the product alone would be cut in the same way; large where there are fewer strips
    of rows than cores, or where the rows are so few that every strip streams all of the weights.
    """
    alone = estimate_cycles(best_tiling(extents, hardware), extents, hardware)
    strip = estimate_cycles(best_strip(extents, hardware), extents, hardware)
    return max(0.0, strip / alone - 1.0)


def best_strip(e: Extents, hardware: Hardware) -> Tiling:
    """The best tiling among those whose pieces hold whole rows."""
    return min((_best(e, hardware, v) for v in _vectors(e, hardware)), key=lambda p: p[0])[1]


def strip_bytes(t: Tiling, e: Extents) -> int:
    """Scratch memory of one strip."""
    return 4 * t.ri * t.wb * t.tw * e.vectors * e.lanes


def _vectors(e: Extents, hardware: Hardware) -> list[int]:
    return [v for v in base.divisors(e.vectors, 8) if register_limit(hardware, v) >= 1]


def _best(e: Extents, hardware: Hardware, v: int) -> tuple[float, Tiling]:
    """Cheapest strip with ``v`` vectors in a tile; it stays within half of L2 if any does."""
    found = []
    for tw in base.divisors(e.columns, register_limit(hardware, v)):
        tiles = e.columns // tw
        shapes = [(1, wb) for wb in base.divisors(tiles)]
        shapes += [(ri, tiles) for ri in base.divisors(e.rows, 64) if ri > 1]
        for ri, wb in shapes:
            tiling = Tiling(True, v, tw, ri, wb, e.vectors // v)
            large = strip_bytes(tiling, e) > hardware.l2_bytes // 2
            found.append((large, estimate_cycles(tiling, e, hardware), tiling))
    large, cycles, tiling = min(found, key=lambda f: f[:2])
    return cycles * (2.0 if large else 1.0), tiling


def _schedule(func: PrimFunc, t: Tiling, e: Extents, hardware: Hardware, tunable: bool) -> Schedule:
    sch = base.new_schedule(func)
    form = _form(sch)
    assert form is not None
    anchor, lanes = form.anchor.rv, hardware.lanes()
    padded = any(b.name == PAD_BLOCK for b in base.blocks(sch))
    base.inline_producers(sch, anchor, keep=(PAD_BLOCK,))
    if form.summed == form.anchor.name:
        summed = sch.cache_write(anchor, 0, "global")
    else:
        summed = sch.get_sblock(form.summed)
        base.inline_producers(sch, summed, keep=(form.anchor.name, PAD_BLOCK))
    partial = in_blocks(sch, form.anchor)
    behind = _norm_blocks(sch, form, lanes)
    strip, row = _cut_rows(sch, behind[-1], t, e, tunable)
    for block in reversed(behind[:-1]):
        sch.compute_at(block, row, preserve_unit_loops=True)
    for block in behind:
        vectorize_inner(sch, block, row, lanes)
    sch.compute_at(summed, strip, preserve_unit_loops=True)
    tile, inner = _cut_strip(sch, summed, strip, t, e)
    tile_anchor(sch, anchor, tile, t, e.lanes, partial)
    for loop in inner[:-1]:
        sch.unroll(loop)
    sch.vectorize(inner[-1])
    if padded:
        base.pad_parallel(sch, sch.get_sblock(PAD_BLOCK), lanes)
    return sch


def _norm_blocks(sch: Schedule, form: _Form, lanes: int) -> list[Any]:
    """The blocks behind the product in order, sums in vector partials."""
    handles = []
    for name in form.behind:
        block = base.read_block(sch, sch.get_sblock(name))
        if "R" in block.kinds:
            partial = vector_partials(sch, block, lanes)
            handles += [] if partial is None else [partial]
        handles.append(sch.get_sblock(name))
    return handles


def _cut_rows(sch: Schedule, out: Any, t: Tiling, e: Extents, tunable: bool) -> tuple[Any, Any]:
    """Cut the result into strips of rows; returns the loop over strips and that over rows."""
    *lead, m, _ = sch.get_loops(out)
    rows = sch.fuse(*lead) if lead else sch.add_unit_loop(m)
    tiles = e.columns // t.tw
    r0, r1 = sch.split(rows, [None, t.ri])
    wb = base.pick(sch, base.divisors(tiles), t.wb, tunable)
    m0, m1, m2 = sch.split(m, [None, wb, t.tw])
    sch.reorder(r0, m0, r1, m1, m2)
    strip = sch.fuse(r0, m0)
    sch.parallel(strip)
    return strip, sch.fuse(r1, m1, m2)


def _cut_strip(
    sch: Schedule, summed: Any, strip: Any, t: Tiling, e: Extents
) -> tuple[Any, list[Any]]:
    """Tile a strip: groups of columns outside, so that their weights stay near while rows pass."""
    depth = base.depth_in(sch, summed, strip)
    *lead, m, o = sch.get_loops(summed)[depth:]
    m1, m2 = sch.split(m, [None, t.tw])
    o1, o2, o3 = sch.split(o, [None, t.v, e.lanes])
    sch.reorder(o1, *lead, m1, m2, o2, o3)
    return m1, [m2, o2, o3]
