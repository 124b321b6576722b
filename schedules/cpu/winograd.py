"""Winograd convolution F(m x m, 3 x 3) on CPU, weights transformed and packed at compile time.

    Y = A^T [ (G g G^T) . (B^T d B) ] A        (Lavin and Gray, "Fast Algorithms for
    Convolutional Neural Networks", 2016)

A tile of m x m outputs needs (m+2)^2 products instead of 9 m^2: 2.25 times fewer for m = 2, four
times fewer for m = 4. The kernel has three parallel stages over all P tiles: transform the input
to V[e, p, c], multiply per position e of the tile, transform M[e, p, o] back and apply the
epilogue. Tiles are padded up to whole register tiles, image borders are masked while loading.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base
from tvmfuse.schedules.anchor import Conv2d
from tvmfuse.schedules.cpu.contraction import lanes_for, padded_columns, register_limit
from tvmfuse.schedules.variant import Variant, zero

FAMILY = "winograd"
TILE = "tvmfuse.winograd_m"

# Points of F(4x4): 0, ±A, ±B, ∞. The usual ±1, ±2 need fewer multiplications, but their powers
# differ more: over 512 channels the largest error was 9.8e-6 of the output's magnitude with them
# and 2.8e-6 with these (float32, mean of three draws, 2026-12-01). All constants are exact.
A, B = 5 / 8, 3 / 2

# Rows of B^T, G and A^T by output tile size m (Toom-Cook; a row for each point).
BT: dict[int, list[list[float]]] = {
    2: [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]],
    4: [
        [A**2 * B**2, 0, -(A**2) - B**2, 0, 1, 0],
        [0, -A * B**2, -(B**2), A, 1, 0],
        [0, A * B**2, -(B**2), -A, 1, 0],
        [0, -B * A**2, -(A**2), B, 1, 0],
        [0, B * A**2, -(A**2), -B, 1, 0],
        [0, A**2 * B**2, 0, -(A**2) - B**2, 0, 1],
    ],
}
_NA, _NB = 2 * A**2 * (A**2 - B**2), 2 * B**2 * (B**2 - A**2)
G: dict[int, list[list[float]]] = {
    2: [[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]],
    4: [
        [1 / (A**2 * B**2), 0, 0],
        [1 / _NA, A / _NA, A**2 / _NA],
        [1 / _NA, -A / _NA, A**2 / _NA],
        [1 / _NB, B / _NB, B**2 / _NB],
        [1 / _NB, -B / _NB, B**2 / _NB],
        [0, 0, 1],
    ],
}
AT: dict[int, list[list[float]]] = {
    2: [[1, 1, 1, 0], [0, 1, -1, 1]],
    4: [
        [1, 1, 1, 1, 1, 0],
        [0, A, -A, B, -B, 0],
        [0, A**2, A**2, B**2, B**2, 0],
        [0, A**3, -(A**3), B**3, -(B**3), 1],
    ],
}
RTOL = {2: 2e-5, 4: 1e-4}  # growth of rounding by the transforms, per Lavin and Gray §5


def applicable(conv: Conv2d, hardware: Hardware) -> bool:
    """3x3, stride 1, no dilation, no groups, whole vectors of channels on both sides."""
    lanes = hardware.lanes()
    return (
        (conv.KH, conv.KW) == (3, 3)
        and conv.stride == (1, 1)
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.dtype == "float32"
        and conv.C % lanes == 0
        and conv.O % lanes == 0
    )


@dataclass(frozen=True)
class Grid:
    """Tiles of one convolution: m, input tile size a, tile rows and columns, P padded tiles."""

    m: int
    a: int
    rows: int
    columns: int
    tiles: int


def grid(conv: Conv2d, m: int, hardware: Hardware) -> Grid:
    """Cover the output with m x m tiles."""
    rows, columns = math.ceil(conv.OH / m), math.ceil(conv.OW / m)
    return Grid(m, m + 2, rows, columns, padded_columns(conv.N * rows * columns, hardware))


def estimate_cycles(conv: Conv2d, m: int, hardware: Hardware) -> float:
    """Estimated cycles of F(m x m): products, transforms and the traffic of what they hand over.

    Transforms cost about 4 vector operations an element of a tile on either side (counted from
    the matrices). The tiles are written and read once through L2 or L3 and every transformed
    weight is read once, at 16 and 8 bytes a cycle and core (the order of magnitude of current
    x86 servers); tuning measures what the model gets wrong.
    """
    g = grid(conv, m, hardware)
    positions, lanes = g.a * g.a, hardware.lanes()
    product = positions * g.tiles * conv.C * conv.O / lanes / 0.8
    transform = positions * g.tiles * (conv.C + conv.O) / lanes * 4
    handed_over = 2 * positions * g.tiles * (conv.C + conv.O) * 4 / 16
    weights = positions * conv.C * conv.O * 4 / 8
    return (product + transform + handed_over + weights) / hardware.cores


def winograd(conv: Conv2d, m: int, hardware: Hardware) -> Variant:
    """Variant F(m x m, 3 x 3) of ``conv``; weights packed [(m+2)^2, O/L, C, L]."""
    lanes = lanes_for(conv.O, hardware)
    g = grid(conv, m, hardware)
    positions = g.a * g.a

    def pack(w_OHWI: np.ndarray) -> np.ndarray:
        rows = np.asarray(G[m])
        u = np.einsum("ai,oijc,bj->abco", rows, w_OHWI.astype(np.float64), rows, optimize=True)
        return by_position(u.reshape(positions, conv.C, conv.O), lanes).astype(conv.dtype)

    shape = (conv.N, conv.H, conv.W, conv.C)
    packed = (positions, conv.O // lanes, conv.C, lanes)

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        per_image = g.rows * g.columns
        back = tiles_of(conv, g, lanes, FAMILY, x, w)

        def assemble(n: Any, h: Any, col: Any, o: Any) -> Any:
            p = n * per_image + h // m * g.columns + col // m
            return combine(AT[m], col % m, lambda j: back[p, h % m, j, o])

        return te.compute((conv.N, conv.OH, conv.OW, conv.O), assemble, name="output_transform")

    cycles = estimate_cycles(conv, m, hardware)
    name = f"winograd{m}"
    return Variant(name, conv, shape, packed, compute, pack, cycles, RTOL[m], exact=False)


def by_position(u: np.ndarray, lanes: int) -> np.ndarray:
    """[positions, C, O] as [positions, O/L, C, L]."""
    split = u.reshape(*u.shape[:2], -1, lanes)
    return np.ascontiguousarray(split.transpose(0, 2, 1, 3))


def tiles_of(
    conv: Conv2d, g: Grid, lanes: int, family: str, x: te.Tensor, w: te.Tensor
) -> te.Tensor:
    """All but the last step: products of the tiles, transformed back along their columns.

    Returns
    -------
    te.Tensor
        ``[tiles, m, m + 2, O]``; the rows of A^T are still to be applied along the third axis.
    """
    m, a, per_image = g.m, g.a, g.rows * g.columns

    def load(p: Any, i: Any, j: Any, c: Any) -> Any:
        n = p // per_image
        row = p // g.columns % g.rows * m + i - conv.pad[0]
        col = p % g.columns * m + j - conv.pad[1]
        inside = tirx.all(n < conv.N, row >= 0, row < conv.H, col >= 0, col < conv.W)
        return tirx.if_then_else(inside, x[n, row, col, c], zero(conv.dtype))

    d = te.compute((g.tiles, a, a, conv.C), load, name="tile")
    half = te.compute(
        (g.tiles, a, a, conv.C),
        lambda p, e, j, c: combine(BT[m], e, lambda i: d[p, i, j, c]),
        name="input_half",
    )
    v = te.compute(
        (a * a, g.tiles, conv.C),
        lambda e, p, c: combine(BT[m], e % a, lambda j: half[p, e // a, j, c]),
        name="input_transform",
    )
    c = te.reduce_axis((0, conv.C), "c")
    notes = {base.FAMILY: family, base.LANES: lanes, TILE: m}
    product = te.compute(
        (a * a, g.tiles, conv.O),
        lambda e, p, o: te.sum(v[e, p, c] * w[e, o // lanes, c, o % lanes], axis=c),
        name="winograd",
        attrs=notes,
    )
    return te.compute(
        (g.tiles, m, a, conv.O),
        lambda p, i, j, o: combine(AT[m], i, lambda e: product[e * a + j, p, o]),
        name="output_half",
    )


def combine(matrix: list[list[float]], index: Any, term: Callable[[int], Any]) -> Any:
    """Row ``index`` of ``matrix`` times a vector of terms; unrolled loops select the row."""
    result = _linear(matrix[-1], term)
    for k in range(len(matrix) - 2, -1, -1):
        result = tirx.Select(index == k, _linear(matrix[k], term), result)
    return result


def _linear(row: list[float], term: Callable[[int], Any]) -> Any:
    total: Any = None
    for i, factor in enumerate(row):
        if factor == 0:
            continue
        value = term(i)
        if total is None:
            total = value if factor == 1 else value * tirx.const(float(factor), "float32")
        elif factor == 1:
            total = total + value
        elif factor == -1:
            total = total - value
        else:
            total = total + value * tirx.const(float(factor), "float32")
    return total


def vectors_of(anchor: base.Block, hardware: Hardware) -> tuple[list[int], int]:
    """Vectors of channels that a register tile may have, and how many it has by default."""
    vectors = anchor.spatial[2] // int(anchor.annotations[base.LANES])
    wide = [v for v in base.divisors(vectors, 6) if register_limit(hardware, v) >= 1]
    return wide, max((v for v in wide if v <= 2), default=1)


class WinogradTemplate:
    """Three parallel stages; the products are a register-tiled batched contraction."""

    name = "cpu.winograd"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        anchor = base.find_family(base.blocks(base.new_schedule(func)), FAMILY)
        if anchor is None:
            return None
        wide, default = vectors_of(anchor, hardware)
        if not tunable:
            return [_schedule(func, anchor, default, False, hardware, False)]
        return [
            _schedule(func, anchor, v, tiles_outer, hardware, True)
            for v in wide
            for tiles_outer in (False, True)
        ]


def _schedule(
    func: PrimFunc,
    anchor: base.Block,
    v: int,
    tiles_outer: bool,
    hardware: Hardware,
    tunable: bool,
) -> Schedule:
    sch = base.new_schedule(func)
    lanes, m = int(anchor.annotations[base.LANES]), int(anchor.annotations[TILE])
    product = sch.get_sblock(anchor.name)
    back = sch.get_consumers(product)[0]
    out = base.detach_output(sch, back)
    base.inline_producers(sch, sch.get_sblock("tile"), keep=())
    schedule_input(sch, m + 2, lanes)
    schedule_product(sch, product, anchor, v, tiles_outer, hardware, tunable)
    _schedule_output(sch, out, back, m, lanes)
    return sch


def local_vectors(sch: Schedule, block: Any, at: Any) -> None:
    """Compute ``block`` at loop ``at`` into registers: all loops unrolled, last vectorised."""
    depth = base.depth_of(sch, block, at)
    sch.compute_at(block, at, preserve_unit_loops=True)
    *others, last = sch.get_loops(block)[depth:]
    for loop in others:
        sch.unroll(loop)
    sch.vectorize(last)
    sch.set_scope(block, 0, "local")


def schedule_input(sch: Schedule, a: int, lanes: int) -> None:
    """V[e, p, c] for one tile and one vector of channels at a time."""
    v = sch.get_sblock("input_transform")
    *outer, e, p, c = sch.get_loops(v)
    e_row, e_col = sch.split(e, [a, a])
    c_o, c_i = sch.split(c, [None, lanes])
    sch.reorder(p, c_o, e_row, e_col, c_i)
    local_vectors(sch, sch.get_sblock("input_half"), c_o)
    local_vectors(sch, sch.get_sblock("tile"), c_o)
    sch.unroll(e_row)
    sch.unroll(e_col)
    sch.vectorize(c_i)
    if not outer:
        sch.parallel(p)


def schedule_product(
    sch: Schedule,
    product: Any,
    anchor: base.Block,
    v: int,
    tiles_outer: bool,
    hardware: Hardware,
    tunable: bool,
) -> None:
    """M[e, p, o] tiled in registers; outermost, positions and channels (or tiles) are parallel."""
    lanes = int(anchor.annotations[base.LANES])
    *outer, e, p, o, c = sch.get_loops(product)
    candidates = base.divisors(base.loop_extent(sch, p), register_limit(hardware, v))
    resident = base.columns_in_l1(4 * anchor.reduction[0])
    tp = base.pick(sch, candidates, max(c for c in candidates if c <= resident), tunable)
    copy = sch.cache_write(product, 0, "local")
    p_o, p_i = sch.split(p, [None, tp])
    o_o, o_v, o_l = sch.split(o, [None, v, lanes])
    middle = (p_o, o_o) if tiles_outer else (o_o, p_o)
    sch.reorder(e, *middle, c, p_i, o_v, o_l)
    sch.reverse_compute_at(copy, middle[1], preserve_unit_loops=True)
    *_, c_p, c_o = sch.get_loops(copy)
    c_v, c_l = sch.split(c_o, [v, lanes])
    for loop in (p_i, o_v, c_p, c_v):
        sch.unroll(loop)
    sch.vectorize(o_l)
    sch.vectorize(c_l)
    if not outer:
        sch.parallel(sch.fuse(e, middle[0]))
    sch.decompose_reduction(product, c)


def _schedule_output(sch: Schedule, out: Any, back: Any, m: int, lanes: int) -> None:
    """Inverse transform and epilogue for one tile and one vector of channels at a time."""
    n, h, w, o = sch.get_loops(out)
    h_o, h_i = sch.split(h, [None, m])
    w_o, w_i = sch.split(w, [None, m])
    o_o, o_l = sch.split(o, [None, lanes])
    sch.reorder(n, h_o, w_o, o_o, h_i, w_i, o_l)
    local_vectors(sch, back, o_o)
    sch.unroll(h_i)
    sch.unroll(w_i)
    sch.vectorize(o_l)
    sch.parallel(sch.fuse(n, h_o, w_o))
