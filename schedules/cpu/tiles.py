"""Schedule of a contraction whose sums stay in tile registers (:mod:`.amx`).

One register tile is ``groups`` tiles of pixels times ``v`` rows of lanes: tiles of weights and of
activations are loaded once a step and meet each other. Its sums are stored to a buffer that stays
in L1, where the epilogue reads them as vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base
from tvmfuse.schedules.cpu import amx
from tvmfuse.schedules.cpu.amx import ROLE, TILE_LANES, TILE_ROWS, TILES
from tvmfuse.schedules.cpu.contraction import PAD_BLOCK

FAMILY = "tiles"
STEP = "tvmfuse.step"  # block annotation: values of the last summed axis that one step takes
_PIXELS = ((1, 2), (2, 1), (1, 1), (1, 3), (1, 4), (4, 1))  # tiles of a register tile: down, across
_MOST_VECTORS = 4


def step_cycles(groups: int, columns: int, rows: int, far: float = 0.0) -> float:
    """Cycles of one step of a register tile.

    A product takes a cycle for each row of activations, a load half a cycle for each row from L1
    (Intel's optimization manual, "Intel AMX"); ``far`` are the cycles that a tile of weights takes
    from further away.
    """
    loads = groups * rows / 2 + columns * max(TILE_LANES / 2, far)
    return max(groups * columns * rows, loads)


@dataclass(frozen=True)
class Tiling:
    """Decisions of one schedule; the first five are structure, the rest is sampled.

    Parameters
    ----------
    rows_outer
        Parallel loop order: rows then lanes, or the other way round.
    v
        Rows of lanes in the register tile.
    down, across
        Tiles of pixels in the register tile: rows of the image, and beside one another in a row.
    height
        Pixels of one tile.
    ri, wb, ob
        Register tiles in one parallel piece: down, across, and of channels.
    """

    rows_outer: bool
    v: int
    down: int
    across: int
    height: int
    ri: int
    wb: int
    ob: int


@dataclass(frozen=True)
class Extents:
    """Loop extents of a contraction in tiles."""

    front: int
    rows: int
    columns: int
    vectors: int
    lanes: int
    steps: int
    step_bytes: int

    @property
    def tiles_of_lanes(self) -> int:
        """Tiles that one row of lanes takes."""
        return -(-self.lanes // TILE_LANES)


class TileTemplate:
    """Schedule of a contraction by tile registers, and of its epilogue."""

    name = "cpu.tiles"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        probe = base.new_schedule(func)
        anchor = base.find_family(base.blocks(probe), FAMILY)
        if anchor is None:
            return None
        e = extents_of(anchor)
        if not tunable:
            best = min((_best(e, hardware, s) for s in structures(e)), key=lambda pair: pair[0])
            return [_schedule(func, best[1], e, hardware, False)]
        return [_schedule(func, _best(e, hardware, s)[1], e, hardware, True) for s in structures(e)]


def extents_of(anchor: base.Block) -> Extents:
    """Extents of an anchor block: rows, columns and channels are its last spatial axes."""
    lanes, step = int(anchor.annotations[base.LANES]), int(anchor.annotations[STEP])
    *lead, columns, channels = anchor.spatial
    *front, rows = lead or [1]
    return Extents(
        front=math.prod(front),
        rows=rows,
        columns=columns,
        vectors=channels // lanes,
        lanes=lanes,
        steps=math.prod(anchor.reduction) // step,
        step_bytes=step * 2,
    )


def structures(e: Extents) -> list[tuple[bool, int, int, int]]:
    """What of a :class:`Tiling` no trace can change: ``rows_outer, v, down, across``."""
    found = []
    for down, across in _PIXELS:
        for v in base.divisors(e.vectors, _MOST_VECTORS):
            groups, columns = down * across, v * e.tiles_of_lanes
            fits = groups * columns + columns + 1 <= TILES
            if fits and e.rows % down == 0 and e.columns % across == 0:
                found += [(outer, v, down, across) for outer in (True, False)]
    return found


def _best(
    e: Extents, hardware: Hardware, structure: tuple[bool, int, int, int]
) -> tuple[float, Tiling]:
    _, v, down, across = structure
    best: tuple[float, Tiling] | None = None
    for height in base.divisors(e.columns // across, TILE_ROWS):
        tiles = e.columns // across // height
        rows = e.front * e.rows // down
        for ri in base.divisors(rows, 64):
            for wb in {tiles} if rows > 1 else set(base.divisors(tiles, 64)):
                for ob in base.divisors(e.vectors // v, 64):
                    t = Tiling(*structure, height, ri, wb, ob)
                    cost = estimate_cycles(t, e, hardware)
                    if best is None or cost < best[0]:
                        best = (cost, t)
    assert best is not None  # every divisor list holds 1
    return best


def estimate_cycles(t: Tiling, e: Extents, hardware: Hardware) -> float:
    """Estimated cycles of one call on all cores: products, loads, epilogue, balance.

    A core fetches some 40 bytes a cycle from L2 and some 10 from beyond it (measured on Sapphire
    Rapids to within a factor of two); only the order of candidates matters here.
    """
    groups, columns = t.down * t.across, t.v * e.tiles_of_lanes
    tile_bytes = e.step_bytes * TILE_LANES
    panel = e.steps * columns * tile_bytes
    strip = e.steps * groups * t.height * e.step_bytes
    from_l2 = tile_bytes / 40
    far = from_l2 if panel + strip > hardware.l1d_bytes * 0.7 else 0.0
    per_step = step_cycles(groups, columns, t.height, far)
    sums = groups * t.height * columns
    per_tile = per_step * e.steps + sums * 3 + 60
    tiles = e.front * e.rows // t.down * (e.columns // t.across // t.height) * (e.vectors // t.v)
    pieces = tiles // (t.ri * t.wb * t.ob)
    balance = base.imbalance(pieces, hardware.cores)
    compute = tiles * per_tile / hardware.cores * balance
    return compute + pieces * 150 / hardware.cores + _refills(t, e, hardware, pieces, panel, strip)


def _refills(
    t: Tiling, e: Extents, hardware: Hardware, pieces: int, panel: int, strip: int
) -> float:
    """Cycles of what comes from beyond L2, half of them hidden behind the products."""
    resident = hardware.l2_bytes // 2
    weights, pixels = panel * t.ob, strip * t.ri * t.wb
    all_weights = panel * (e.vectors // t.v)
    if t.rows_outer:
        moved_weights = weights if all_weights > resident else all_weights / pieces
        moved_pixels = pixels * t.ob * t.v / e.vectors if pixels < resident else pixels * t.ob
    else:
        share = pieces * t.ob * t.v / e.vectors  # pieces that have the same weights
        moved_weights = weights / share if weights < resident else weights * t.ri * t.wb
        moved_pixels = pixels
    return pieces * (moved_weights + moved_pixels) / 10 / hardware.cores * 0.5


def _schedule(func: PrimFunc, t: Tiling, e: Extents, hardware: Hardware, tunable: bool) -> Schedule:
    sch = base.new_schedule(func)
    found = base.blocks(sch)
    block = base.find_family(found, FAMILY)
    assert block is not None
    base.inline_producers(sch, block.rv, keep=(PAD_BLOCK,))
    out = base.detach_output(sch, block.rv)
    tile_loop, inner = _tile_output(sch, out, t, e, tunable)
    _tile_anchor(sch, block.rv, tile_loop, t, e.lanes, int(block.annotations[STEP]))
    for loop in inner[:-1]:
        sch.unroll(loop)
    sch.vectorize(inner[-1])
    for other in found:
        if other.name == PAD_BLOCK:
            pad = sch.get_sblock(PAD_BLOCK)
            base.pad_parallel(sch, pad, hardware.lanes(2))
    return sch


def _tile_output(
    sch: Schedule, out: Any, t: Tiling, e: Extents, tunable: bool
) -> tuple[Any, list[Any]]:
    """Tile the epilogue; returns the loop to compute the anchor at, and loops to write out."""
    *lead, w, o = sch.get_loops(out)
    down = []
    if lead:
        last, inner_row = sch.split(lead[-1], [None, t.down])
        down, lead = [inner_row], [*lead[:-1], last]
    rows = sch.fuse(*lead) if lead else sch.add_unit_loop(w)
    total = e.front * e.rows // t.down
    ri = base.pick(sch, base.divisors(total, 64), t.ri, tunable)
    ob = base.pick(sch, base.divisors(e.vectors // t.v, 64), t.ob, tunable)
    r0, r1 = sch.split(rows, [None, ri])
    if total > 1:
        w0, (w1, w2, w3) = None, sch.split(w, [None, t.across, t.height])
    else:
        tiles = e.columns // t.across // t.height
        wb = base.pick(sch, base.divisors(tiles, 64), t.wb, tunable)
        w0, w1, w2, w3 = sch.split(w, [None, wb, t.across, t.height])
    width = _vector(e.lanes)
    o0, o1, o2, o3, o4 = sch.split(o, [None, ob, t.v, e.lanes // width, width])
    outer_rows = [r0] if w0 is None else [r0, w0]
    outer = [*outer_rows, o0] if t.rows_outer else [o0, *outer_rows]
    sch.reorder(*outer, o1, r1, w1, *down, w2, w3, o2, o3, o4)
    piece = sch.fuse(*outer)
    sch.parallel(piece)
    sch.annotate(piece, ROLE, amx.PIECE)
    return w1, [o2, o3, o4]


def _vector(lanes: int) -> int:
    """Width of the epilogue's vectors: all lanes of a tile, or a part of several tiles' lanes."""
    if lanes <= TILE_LANES:
        return lanes
    power = base.vector_width(lanes, TILE_LANES)
    return power if power >= TILE_LANES // 2 else max(base.divisors(lanes, TILE_LANES))


def _tile_anchor(
    sch: Schedule, anchor: Any, tile_loop: Any, t: Tiling, lanes: int, step: int
) -> None:
    """Compute the anchor at a tile of its epilogue, and say what its loops are."""
    depth = base.depth_of(sch, anchor, tile_loop)
    sch.compute_at(anchor, tile_loop, preserve_unit_loops=True)
    loops = sch.get_loops(anchor)[depth:]
    kinds = base.read_block(sch, anchor).kinds
    *sums, k = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    *lead, w, o = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"]
    across, row = sch.split(w, [t.across, t.height])
    vector, lane = sch.split(o, [t.v, lanes])
    k_step, words = sch.split(k, [None, step])
    sums.append(k_step)
    sch.reorder(*sums, *lead, across, row, vector, lane, words)
    roles = {amx.GROUPS: [*lead, across], amx.ROWS: [row], amx.VECTORS: [vector]}
    roles |= {amx.LANES: [lane], amx.WORDS: [words], amx.SUM: sums}
    for role, mine in roles.items():
        for loop in mine:
            sch.annotate(loop, ROLE, role)
    sch.set_scope(anchor, 0, "local")
    sch.decompose_reduction(anchor, sums[0])
