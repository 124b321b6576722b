"""Direct convolution and dense product on CPU: one register-tiled contraction.

    y[r, w, o] = sum_k x[r, w, k] * wp[o // L, k, o % L]

r: output rows (N·OH, or the leading axes of a product), w: output columns (OW, or M), o: output
channels, k: the window and input channels, L: lanes of a packed weight vector. A register tile
holds ``tw`` columns times ``v`` vectors of channels; every step of k loads v weight vectors and
broadcasts tw activations. Columns are padded up to a multiple of a good tile when the weights are
packed, so the inner loop has no bounds checks on any shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base
from tvmfuse.schedules.anchor import Conv2d, Dense
from tvmfuse.schedules.cpu.block_sums import in_blocks
from tvmfuse.schedules.variant import Variant, zero

FAMILY = "contraction"
PAD_BLOCK = "pad"
_PLANES = 4  # red, green, blue, and a mask or depth


def register_limit(hardware: Hardware, v: int) -> int:
    """Most columns a tile of ``v`` vectors may have.

    tw·v accumulators, v weight vectors and one scratch register must stay below the register
    file: at equality LLVM spilled (measured: 7x4 at 32 registers fell to 60 % of 14x2).
    """
    return (hardware.vector_registers - 2 - v) // v


def padded_columns(width: int, hardware: Hardware) -> int:
    """Smallest multiple of a good tile ≥ ``width``; small tiles count as a little slower."""
    limit = register_limit(hardware, 2)
    if width <= limit:
        return width

    def cost(tile: int) -> float:
        return math.ceil(width / tile) * tile * (1 + 0.5 / tile)

    best = min(range(limit, max(1, limit // 3), -1), key=cost)
    return math.ceil(width / best) * best


def lanes_for(channels: int, hardware: Hardware, dtype_bytes: int = 4) -> int:
    """Widest vector that divides ``channels``; 1 when not even four do."""
    lanes = hardware.lanes(dtype_bytes)
    while lanes >= 4:
        if channels % lanes == 0:
            return lanes
        lanes //= 2
    return 1


def direct_cycles(anchor: Conv2d | Dense, hardware: Hardware) -> float:
    """Estimated cycles of the definition: one vector FMA a cycle and core, 90 % busy."""
    return anchor.flops / 2 / hardware.lanes() / hardware.cores / 0.9


def by_planes(conv: Conv2d) -> bool:
    """Whether the template reads channels first as well as last: pictures of up to four planes.

    Their values are read one at a time and broadcast in either layout; with more channels the
    planes would be too far apart for L1.
    """
    return conv.groups == 1 and conv.C <= _PLANES


def conv2d_direct(conv: Conv2d, hardware: Hardware) -> Variant:
    """Convolution by its definition, weights packed [O/L, KH, KW, C/groups, L]."""
    per_group = conv.O // conv.groups
    lanes = lanes_for(per_group, hardware)
    cg = conv.C // conv.groups
    packed = (conv.O // lanes, conv.KH, conv.KW, cg, lanes)

    def pack(w_OHWI: np.ndarray) -> np.ndarray:
        split = w_OHWI.reshape(conv.O // lanes, lanes, conv.KH, conv.KW, cg)
        return np.ascontiguousarray(split.transpose(0, 2, 3, 4, 1))

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        columns = padded_columns(conv.OW, hardware)
        x = padded_input(x, conv, columns)
        kh = te.reduce_axis((0, conv.KH), "kh")
        kw = te.reduce_axis((0, conv.KW), "kw")
        c = te.reduce_axis((0, cg), "c")
        (sh, sw), (dh, dw) = conv.stride, conv.dilation

        def body(n: Any, h: Any, col: Any, o: Any) -> Any:
            channel = c if conv.groups == 1 else o // per_group * cg + c
            value = x[n, h * sh + kh * dh, col * sw + kw * dw, channel]
            return te.sum(value * w[o // lanes, kh, kw, c, o % lanes], axis=[kh, kw, c])

        notes = {base.FAMILY: FAMILY, base.LANES: lanes, base.STRIDE: 4 * conv.C * sw}
        wide = te.compute((conv.N, conv.OH, columns, conv.O), body, name="conv2d", attrs=notes)
        return cropped(wide, conv.OW)

    shape = (conv.N, conv.H, conv.W, conv.C)
    return Variant(
        "direct", conv, shape, packed, compute, pack, direct_cycles(conv, hardware), rtol=2e-5
    )


def padded_input(x: te.Tensor, conv: Conv2d, columns: int) -> te.Tensor:
    """Zero-pad ``x`` and widen it so that ``columns`` output columns can be read."""
    top, left, bottom, right = conv.pad
    reach = (columns - 1) * conv.stride[1] + (conv.KW - 1) * conv.dilation[1] + 1
    wide = max(conv.W + left + right, reach)
    if not (top or left or bottom or right) and wide == conv.W:
        return x

    def body(n: Any, h: Any, w: Any, c: Any) -> Any:
        inside = tirx.all(h >= top, h < conv.H + top, w >= left, w < conv.W + left)
        return tirx.if_then_else(inside, x[n, h - top, w - left, c], zero(conv.dtype))

    shape = (conv.N, conv.H + top + bottom, wide, conv.C)
    return te.compute(shape, body, name=PAD_BLOCK)


def cropped(wide: te.Tensor, columns: int) -> te.Tensor:
    """View of the first ``columns`` columns (axis -2); inlined into the epilogue."""
    if int(wide.shape[-2]) == columns:
        return wide
    shape = (*wide.shape[:-2], columns, wide.shape[-1])
    return te.compute(shape, lambda *i: wide(*i), name="crop")


def dense(product: Dense, hardware: Hardware) -> Variant:
    """``x[..., M, K] @ w[K, O]`` with weights packed [O/L, K, L]."""
    lanes = lanes_for(product.O, hardware)

    def pack(w_KO: np.ndarray) -> np.ndarray:
        split = w_KO.reshape(product.K, product.O // lanes, lanes)
        return np.ascontiguousarray(split.transpose(1, 0, 2))

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        columns = padded_columns(product.M, hardware)
        if columns != product.M:
            x = _padded_rows(x, product, columns)
        k = te.reduce_axis((0, product.K), "k")

        def body(*axes: Any) -> Any:
            *lead, m, o = axes
            return te.sum(x(*lead, m, k) * w[o // lanes, k, o % lanes], axis=[k])

        notes = {base.FAMILY: FAMILY, base.LANES: lanes, base.STRIDE: 4 * product.K}
        shape = (*product.lead, columns, product.O)
        return cropped(te.compute(shape, body, name="dense", attrs=notes), product.M)

    shape = (*product.lead, product.M, product.K)
    packed = (product.O // lanes, product.K, lanes)
    cycles = direct_cycles(product, hardware)
    return Variant("direct", product, shape, packed, compute, pack, cycles, rtol=2e-5)


def _padded_rows(x: te.Tensor, product: Dense, rows: int) -> te.Tensor:
    def body(*axes: Any) -> Any:
        *lead, m, k = axes
        return tirx.if_then_else(m < product.M, x(*lead, m, k), zero(product.dtype))

    return te.compute((*product.lead, rows, product.K), body, name=PAD_BLOCK)


@dataclass(frozen=True)
class Tiling:
    """Decisions of one schedule; ``rows_outer`` and ``v`` are structure, the rest is sampled.

    Parameters
    ----------
    rows_outer
        Parallel loop order: rows then channel groups, or the other way round.
    v
        Vectors of channels in the register tile.
    tw
        Columns in the register tile.
    ri
        Rows in one parallel piece.
    wb
        Column tiles in one parallel piece.
    ob
        Channel groups (of v vectors) in one parallel piece.
    """

    rows_outer: bool
    v: int
    tw: int
    ri: int
    wb: int
    ob: int


@dataclass(frozen=True)
class Extents:
    """Loop extents of a contraction, and the distance of neighbouring input columns."""

    rows: int
    columns: int
    vectors: int
    lanes: int
    depth: int
    stride_bytes: int


class ContractionTemplate:
    """Register-tiled schedule of a contraction and its epilogue."""

    name = "cpu.contraction"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        probe = base.new_schedule(func)
        anchor = base.find_family(base.blocks(probe), FAMILY)
        if anchor is None:
            return None
        extents = extents_of(anchor)
        if not tunable:
            return [_schedule(func, best_tiling(extents, hardware), extents, hardware, False)]
        return [
            _schedule(func, tiling, extents, hardware, True)
            for tiling in structures(extents, hardware)
        ]


def extents_of(anchor: base.Block) -> Extents:
    """Extents of an anchor block, columns and channels its last spatial axes."""
    lanes = int(anchor.annotations[base.LANES])
    *lead, columns, channels = anchor.spatial
    return Extents(
        rows=math.prod(lead),
        columns=columns,
        vectors=channels // lanes,
        lanes=lanes,
        depth=math.prod(anchor.reduction),
        stride_bytes=int(anchor.annotations[base.STRIDE]),
    )


def structures(e: Extents, hardware: Hardware) -> list[Tiling]:
    """One tiling for each structure, with the model's choice for what is sampled."""
    found = []
    for rows_outer in (True, False):
        for v in base.divisors(e.vectors, 8):
            if register_limit(hardware, v) >= 1:
                found.append(_best(e, hardware, rows_outer, v)[1])
    return found


def best_tiling(e: Extents, hardware: Hardware) -> Tiling:
    """The tiling that the model of :func:`estimate_cycles` likes best."""
    options = [
        _best(e, hardware, rows_outer, v)
        for rows_outer in (True, False)
        for v in base.divisors(e.vectors, 8)
        if register_limit(hardware, v) >= 1
    ]
    return min(options, key=lambda pair: pair[0])[1]


def _best(e: Extents, hardware: Hardware, rows_outer: bool, v: int) -> tuple[float, Tiling]:
    groups = e.vectors // v
    best: tuple[float, Tiling] | None = None
    for tw in base.divisors(e.columns, register_limit(hardware, v)):
        tiles = e.columns // tw
        for ri in base.divisors(e.rows, 64):
            for wb in {tiles} if e.rows > 1 else set(base.divisors(tiles, 64)):
                for ob in base.divisors(groups, 64):
                    t = Tiling(rows_outer, v, tw, ri, wb, ob)
                    cost = estimate_cycles(t, e, hardware)
                    if best is None or cost < best[0]:
                        best = (cost, t)
    assert best is not None  # every divisor list holds 1
    return best


def estimate_cycles(t: Tiling, e: Extents, hardware: Hardware) -> float:
    """Estimated cycles of one call on all cores: register tile, balance, and cache refills.

    The issue rates (one vector FMA and two loads a cycle) and the refill rates (L2 32 bytes a
    cycle, beyond it 8) are those of current x86 cores to within a factor of two; only the
    order of candidates matters here, and tuning corrects it.
    """
    tile_fma = t.tw * t.v
    latency_bound = max(1.0, 8 / tile_fma)  # fewer than 8 chains leave the FMA unit idle
    per_step = max(tile_fma * latency_bound, t.tw + t.v) + 0.5
    if t.tw > base.columns_in_l1(e.stride_bytes):
        per_step *= 2
    tiles = e.rows * (e.columns // t.tw) * (e.vectors // t.v)
    pieces = tiles // (t.ri * t.wb * t.ob)
    per_tile = per_step * e.depth + 2 * tile_fma + 20
    compute = tiles * per_tile / hardware.cores * base.imbalance(pieces, hardware.cores)
    launch = pieces * 30 / hardware.cores
    return compute + launch + _refill_cycles(t, e, hardware, pieces)


def _refill_cycles(t: Tiling, e: Extents, hardware: Hardware, pieces: int) -> float:
    panel = e.depth * t.v * e.lanes * 4  # weights of one register tile
    weights = panel * t.ob
    strip = t.ri * t.wb * t.tw * e.depth * 4  # activations of one piece, window reuse ignored
    all_weights = e.depth * e.vectors * e.lanes * 4
    l2_passes = t.ri * t.wb * t.ob  # every tile streams its panel
    l2 = l2_passes * panel / 32 if panel > hardware.l1d_bytes // 2 else 0
    resident = hardware.l2_bytes // 2
    if t.rows_outer:
        reload_weights = weights if all_weights > resident else all_weights / pieces
        reload_strip = strip * t.ob * t.v / e.vectors if strip < resident else strip * t.ob
    else:
        reload_weights = weights * t.ri * t.wb * t.tw / (e.rows * e.columns)
        reload_weights = reload_weights if weights < resident else weights * t.ri * t.wb
        reload_strip = strip
    far = (reload_weights + reload_strip) / 8
    return pieces * max(l2, far) / hardware.cores * 0.25  # mostly hidden behind the FMAs


def _schedule(func: PrimFunc, t: Tiling, e: Extents, hardware: Hardware, tunable: bool) -> Schedule:
    sch = base.new_schedule(func)
    found = base.blocks(sch)
    anchor_block = base.find_family(found, FAMILY)
    assert anchor_block is not None
    anchor = anchor_block.rv
    base.inline_producers(sch, anchor, keep=(PAD_BLOCK,))
    out = base.detach_output(sch, anchor)
    exact = base.EXACT in anchor_block.annotations
    partial = None if exact else in_blocks(sch, anchor_block)
    tile_loop, inner = tile_output(sch, out, t, e, hardware, tunable)
    tile_anchor(sch, anchor, tile_loop, t, e.lanes, partial)
    for loop in inner[:-1]:
        sch.unroll(loop)
    sch.vectorize(inner[-1])
    for block in found:
        if block.name == PAD_BLOCK:
            pad = sch.get_sblock(PAD_BLOCK)
            if _reads_planes(sch, pad):
                _in_planes(sch, pad)
            else:
                base.pad_parallel(sch, pad, hardware.lanes(1 if exact else 4))
    return sch


def _reads_planes(sch: Schedule, pad: Any) -> bool:
    """Whether a picture comes with its channels first: a transpose was inlined into the pad."""
    stmt = sch.get(pad)
    if len(stmt.reads) != 1 or len(stmt.iter_vars) != 4 or len(stmt.reads[0].region) != 4:
        return False
    return stmt.reads[0].region[1].min.same_as(stmt.iter_vars[3].var)


def _in_planes(sch: Schedule, pad: Any) -> None:
    """Keep the padded picture as it comes: rows are copied, and nothing is transposed."""
    sch.transform_layout(pad, ("write", 0), lambda n, h, w, c: (n, h, c, w))
    n, h, w, c = sch.get_loops(pad)
    sch.reorder(n, h, c, w)
    sch.parallel(sch.fuse(n, h))


def tile_output(
    sch: Schedule, out: Any, t: Tiling, e: Extents, hardware: Hardware, tunable: bool
) -> tuple[Any, list[Any]]:
    """Tile the epilogue; returns the loop to compute the anchor at, and the tile's own loops."""
    *lead, w, o = sch.get_loops(out)
    rows = sch.fuse(*lead) if lead else sch.add_unit_loop(w)
    groups, tiles_max = e.vectors // t.v, e.columns
    ri = base.pick(sch, base.divisors(e.rows, 64), t.ri, tunable)
    tw = base.pick(sch, base.divisors(e.columns, register_limit(hardware, t.v)), t.tw, tunable)
    ob = base.pick(sch, base.divisors(groups, 64), t.ob, tunable)
    r0, r1 = sch.split(rows, [None, ri])
    if e.rows > 1:
        w0, (w1, w2) = None, sch.split(w, [None, tw])
    else:
        wb = base.pick(sch, base.divisors(tiles_max, 64), t.wb, tunable)
        w0, w1, w2 = sch.split(w, [None, wb, tw])
    o0, o1, o2, o3 = sch.split(o, [None, ob, t.v, e.lanes])
    outer_rows = [r0] if w0 is None else [r0, w0]
    outer = [*outer_rows, o0] if t.rows_outer else [o0, *outer_rows]
    sch.reorder(*outer, o1, r1, w1, w2, o2, o3)
    sch.parallel(sch.fuse(*outer))
    return w1, [w2, o2, o3]


def tile_anchor(
    sch: Schedule, anchor: Any, tile_loop: Any, t: Tiling, lanes: int, partial: Any = None
) -> None:
    """Compute the anchor at a tile of its epilogue, accumulating in registers.

    ``partial`` is the block of its partial sums, where it has them.
    """
    depth = base.depth_of(sch, anchor, tile_loop)
    sch.compute_at(anchor, tile_loop, preserve_unit_loops=True)
    loops = sch.get_loops(anchor)[depth:]
    kinds = base.read_block(sch, anchor).kinds
    reduce_loops = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    *lead, w, o = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"]
    o_v, o_l = sch.split(o, [t.v, lanes])
    sch.reorder(*reduce_loops, *lead, w, o_v, o_l)
    for loop in (*lead, w, o_v):
        sch.unroll(loop)
    sch.vectorize(o_l)
    sch.set_scope(anchor, 0, "local")
    if partial is not None:
        tile_anchor(sch, partial, reduce_loops[-1], t, lanes)
    sch.decompose_reduction(anchor, reduce_loops[0])
