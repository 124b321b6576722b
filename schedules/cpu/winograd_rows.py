"""Winograd F(4 x 4, 3 x 3) a row of tiles at a time, with NaN and infinity kept where they belong.

Two things differ from `winograd`. All steps of one row of tiles follow one another on one core, so
that the transformed tiles, which hold 2.25 times as much as the image on either side, stay in its
cache; on images of some megabytes this is what makes Winograd pay. And a tile whose result is not
finite is computed once more by the definition: the transforms add all pixels of a tile to one
another, so that NaN or infinity in one pixel would show in all 16 results. Finite tiles, nearly
all, pay one pass of integer maxima for that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base
from tvmfuse.schedules.anchor import Conv2d
from tvmfuse.schedules.cpu import winograd
from tvmfuse.schedules.cpu.contraction import lanes_for, padded_columns
from tvmfuse.schedules.cpu.text import Writer, i64
from tvmfuse.schedules.cpu.winograd import AT, RTOL, Grid
from tvmfuse.schedules.merge import Step, merged
from tvmfuse.schedules.variant import OUT_ELEMWISE_FUSABLE, Variant

FAMILY = "winograd_rows"
M = 4
_LANES = 16  # of float32 in the widest vectors
_INFINITY = 0x7F800000  # bits of float32 infinity: those of NaN are larger, those of numbers less


def by_rows(conv: Conv2d) -> bool:
    """Whether every CPU can compute it by this variant: vectors of 16 are those of all of them."""
    window = (conv.KH, conv.KW, *conv.stride, *conv.dilation, conv.groups)
    whole = conv.C % _LANES == 0 and conv.O % _LANES == 0
    return window == (3, 3, 1, 1, 1, 1, 1) and whole and conv.dtype == "float32"


def grid(conv: Conv2d, hardware: Hardware) -> Grid:
    """Tiles of the output; every row of tiles is padded to whole register tiles."""
    rows, columns = math.ceil(conv.OH / M), math.ceil(conv.OW / M)
    columns = padded_columns(columns, hardware)
    return Grid(M, M + 2, rows, columns, conv.N * rows * columns)


def estimate_cycles(conv: Conv2d, hardware: Hardware) -> float:
    """As for `winograd`, but what the steps hand over stays in the second-level cache."""
    g = grid(conv, hardware)
    positions, lanes = g.a * g.a, hardware.lanes()
    product = positions * g.tiles * conv.C * conv.O / lanes / 0.8
    transform = positions * g.tiles * (conv.C + conv.O) / lanes * 4
    handed_over = 2 * positions * g.tiles * (conv.C + conv.O) * 4 / 32
    weights = positions * conv.C * conv.O * 4 / 16 * conv.N * g.rows
    return (product + transform + handed_over + weights) / hardware.cores


@dataclass(frozen=True)
class RowsVariant(Variant):
    """A variant whose kernel is an expression, a written block behind it, and a crop."""

    grid: Grid | None = None

    def prim_func(self) -> PrimFunc:
        """Build the unscheduled kernel ``(x, w, y)``."""
        conv, g = self.anchor, self.grid
        assert isinstance(conv, Conv2d) and g is not None
        dtype = conv.dtype
        x = te.placeholder(self.input_shape, dtype, name="x")
        w = te.placeholder(self.weight_shape, dtype, name="w")
        untested = te.create_prim_func(
            [x, w, self.compute(x, w)], index_dtype_override="int64"
        ).with_attr("op_pattern", OUT_ELEMWISE_FUSABLE)
        y = te.placeholder((g.tiles * M * M, conv.O), dtype, name="contained")
        crop = te.create_prim_func([y, _crop(conv, g, y)], index_dtype_override="int64")
        steps = [
            Step(untested, (0, 1)),
            Step(contain(conv, g, self.weight_shape[-1]), (2, 0, 1)),
            Step(crop, (3,)),
        ]
        return merged([self.input_shape, self.weight_shape], dtype, steps)


def winograd_rows(conv: Conv2d, hardware: Hardware) -> RowsVariant:
    """The variant; weights packed [36 + 9, O/L, C, L]: the transformed ones and the taps."""
    lanes, g = lanes_for(conv.O, hardware), grid(conv, hardware)
    positions = g.a * g.a
    transformed = winograd.winograd(conv, M, hardware).pack

    def pack(w_OHWI: np.ndarray) -> np.ndarray:
        taps = w_OHWI.transpose(1, 2, 3, 0).reshape(9, conv.C, conv.O)
        return np.concatenate([transformed(w_OHWI), winograd.by_position(taps, lanes)])

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        back = winograd.tiles_of(conv, g, lanes, FAMILY, x, w)
        return te.compute(
            (g.tiles, M, M, conv.O),
            lambda p, i, j, o: winograd.combine(AT[M], j, lambda e: back[p, i, e, o]),
            name="untested",
        )

    return RowsVariant(
        name="winograd4_rows",
        anchor=conv,
        input_shape=(conv.N, conv.H, conv.W, conv.C),
        weight_shape=(positions + 9, conv.O // lanes, conv.C, lanes),
        compute=compute,
        pack=pack,
        cycles=estimate_cycles(conv, hardware),
        rtol=RTOL[M],
        moves=True,
        grid=g,
    )


def _crop(conv: Conv2d, g: Grid, y: te.Tensor) -> te.Tensor:
    def read(n: Any, h: Any, col: Any, o: Any) -> Any:
        p = (n * g.rows + h // M) * g.columns + col // M
        return y[p * (M * M) + h % M * M + col % M, o]

    return te.compute((conv.N, conv.OH, conv.OW, conv.O), read, name="output_transform")


def contain(conv: Conv2d, g: Grid, lanes: int) -> PrimFunc:
    """Kernel ``(untested, x, w, y)``: tiles that are not finite computed again, others copied.

    Where rows of tiles are padded to whole register tiles, one step takes a whole row: TVM would
    compute only the tiles that are read, and register tiles do not divide those.
    """
    positions, dtype = g.a * g.a, conv.dtype
    groups, tiles = conv.O // lanes, (g.tiles, M, M, conv.O)
    span = g.columns if g.columns > math.ceil(conv.OW / M) else 1
    tile = "p" if span == 1 else f"(p * {i64(span)} + q)"
    ends = ("p, ", f"p * {i64(M * M)} : (p + 1) * {i64(M * M)}")
    if span > 1:
        ends = (f"p * {i64(span)} : (p + 1) * {i64(span)}, ",
                f"p * {i64(span * M * M)} : (p + 1) * {i64(span * M * M)}")  # fmt: skip
    w = Writer()
    weight = (positions + 9, groups, conv.C, lanes)
    image = (conv.N, conv.H, conv.W, conv.C)
    parameters = [("t", tiles, dtype), ("x", image, dtype), ("w", weight, dtype),
                  ("y", (g.tiles * M * M, conv.O), dtype)]  # fmt: skip
    mine = f"g * {i64(lanes)} : (g + 1) * {i64(lanes)}"
    part = f"{ends[0]}{i64(0)} : {i64(M)}, {i64(0)} : {i64(M)}, {mine}"
    whole = ", ".join(f"{i64(0)} : {i64(e)}" for e in image)
    taps = f"{i64(positions)} : {i64(positions + 9)}, g"
    taps += f", {i64(0)} : {i64(conv.C)}, {i64(0)} : {i64(lanes)}"
    with (
        w.kernel(parameters),
        w.loops(("pp", g.tiles // span, "serial"), ("gg", groups, "serial")),
        w.under('T.sblock("contain")'),
    ):
        w.bind("p", f"T.axis.spatial({i64(g.tiles // span)}, pp)")
        w.bind("g", f"T.axis.spatial({i64(groups)}, gg)")
        w.line(f"T.reads([t[{part}], x[{whole}], w[{taps}]])")
        w.line(f"T.writes([y[{ends[1]}, {mine}]])")
        w.bind("most", f'T.sblock_alloc_buffer(({i64(lanes)},), "int32", scope="local")')
        w.bind("worst", f'T.sblock_alloc_buffer(({i64(1)},), "int32", scope="local")')
        w.bind("sum", f'T.sblock_alloc_buffer(({i64(lanes)},), "{dtype}", scope="local")')
        with w.loops(*([("q", span, "serial")] if span > 1 else [])):
            _contain_tile(w, conv, g, lanes, tile)
    return w.function().with_attr("op_pattern", OUT_ELEMWISE_FUSABLE)


def _contain_tile(w: Writer, conv: Conv2d, g: Grid, lanes: int, tile: str) -> None:
    vector = ("l", lanes, "vectorized")
    square = [("i", M, "unroll"), ("j", M, "unroll")]
    channel = f"g * {i64(lanes)} + l"
    with w.loops(vector):
        w.line("most[l] = T.int32(0)")
    with w.loops(*square, vector):
        bits = f'T.reinterpret("int32", t[{tile}, i, j, {channel}])'
        w.line(f"most[l] = T.max(most[l], T.bitwise_and({bits}, T.int32(0x7FFFFFFF)))")
    w.line(f"worst[{i64(0)}] = T.int32(0)")
    with w.loops(("l", lanes, "unroll")):
        w.line(f"worst[{i64(0)}] = T.max(worst[{i64(0)}], most[l])")
    with w.under(f"T.If(worst[{i64(0)}] >= T.int32({_INFINITY}))"):
        with w.under("T.Then()"), w.loops(("i", M, "serial"), ("j", M, "serial")):
            _define(w, conv, g, tile, channel, vector)
        with w.under("T.Else()"), w.loops(*square, vector):
            w.line(f"y[{_pixel(tile)}, {channel}] = t[{tile}, i, j, {channel}]")


def _pixel(tile: str) -> str:
    """Of a tile, among those of all tiles."""
    return f"{tile} * {i64(M * M)} + i * {i64(M)} + j"


def _define(w: Writer, conv: Conv2d, g: Grid, tile: str, channel: str, vector: Any) -> None:
    """One pixel and one vector of channels by the definition."""
    with w.loops(vector):
        w.line(f"sum[l] = T.{conv.dtype}(0)")
    taps = (("a", 3, "serial"), ("b", 3, "serial"), ("c", conv.C, "serial"), vector)
    with w.loops(*taps):
        row = f"{tile} // {i64(g.columns)} % {i64(g.rows)} * {i64(M)} + i + a - {i64(conv.pad[0])}"
        col = f"{tile} % {i64(g.columns)} * {i64(M)} + j + b - {i64(conv.pad[1])}"
        within = [f"T.And({e} >= 0, {e} < {i64(n)})" for e, n in ((row, conv.H), (col, conv.W))]
        inside = f"T.And({within[0]}, {within[1]})"
        value = f"x[{tile} // {i64(g.rows * g.columns)}, {row}, {col}, c]"
        value = f"T.if_then_else({inside}, {value}, T.{conv.dtype}(0))"
        w.line(f"sum[l] = sum[l] + {value} * w[{i64(g.a * g.a)} + a * {i64(3)} + b, g, c, l]")
    with w.loops(vector):
        w.line(f"y[{_pixel(tile)}, {channel}] = sum[l]")


class WinogradRowsTemplate:
    """Rows of tiles in parallel; everything of a row is computed at its loop."""

    name = "cpu.winograd_rows"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        anchor = base.find_family(base.blocks(base.new_schedule(func)), FAMILY)
        if anchor is None:
            return None
        wide, default = winograd.vectors_of(anchor, hardware)
        if not tunable:
            return [_schedule(func, anchor, default, hardware, False)]
        return [_schedule(func, anchor, v, hardware, True) for v in wide]


def _schedule(
    func: PrimFunc, anchor: base.Block, v: int, hardware: Hardware, tunable: bool
) -> Schedule:
    sch = base.new_schedule(func)
    lanes = int(anchor.annotations[base.LANES])
    product = sch.get_sblock(anchor.name)
    back, untested, tested = (sch.get_sblock(n) for n in ("output_half", "untested", "contain"))
    out = base.detach_output(sch, tested)
    base.inline_producers(sch, sch.get_sblock("tile"), keep=())
    _hide_scratch(sch, tested)
    n, *image = sch.get_loops(out)
    first = _channels_first(sch, tested, out)
    h_o, h_i = sch.split(image.pop(1 if first else 0), [None, M])
    if first:
        sch.reorder(n, h_o, image[0], h_i, image[1])
    row = sch.fuse(n, h_o)
    sch.parallel(row)
    base.split_vector(sch, image[-1], lanes, parallel=False)
    for block in (tested, untested):
        sch.compute_at(block, row, preserve_unit_loops=True)
    _, p, i, j, o = sch.get_loops(untested)
    o_o, o_l = sch.split(o, [None, lanes])
    sch.reorder(p, o_o, i, j, o_l)
    winograd.local_vectors(sch, back, o_o)
    sch.unroll(i)
    sch.unroll(j)
    sch.vectorize(o_l)
    for block in (product, sch.get_sblock("input_transform")):
        sch.compute_at(block, row, preserve_unit_loops=True)
    winograd.schedule_input(sch, M + 2, lanes)
    winograd.schedule_product(sch, product, anchor, v, False, hardware, tunable)
    return sch


def _hide_scratch(sch: Schedule, tested: Any) -> None:
    """Take the block's own scratch off its list of accesses.

    TVM makes that list again when it inlines what stands in front of the block, and then counts
    the buffers that live inside the block as read and written outside of it.
    """
    for kind in ("read", "write"):
        stmt = sch.get(tested)
        regions = stmt.reads if kind == "read" else stmt.writes
        own = [
            i for i, r in enumerate(regions) if any(r.source.same_as(b) for b in stmt.alloc_buffers)
        ]
        if own:
            sch.unsafe_hide_buffer_access(tested, kind, own)


def _channels_first(sch: Schedule, tested: Any, out: Any) -> bool:
    """Whether the kernel's result has its channels in front of rows and columns."""
    stmt, (written,) = sch.get(out), sch.get(tested).writes
    axes = [v.var for v in stmt.iter_vars]
    (read,) = [r for r in stmt.reads if r.source.same_as(written.source)]
    (channel,) = [i for i, axis in enumerate(axes) if axis.same_as(read.region[1].min)]
    if channel not in (1, 3) or len(axes) != 4:
        raise ValueError(f"channels are axis {channel} of {len(axes)} of the result")
    return channel == 1
