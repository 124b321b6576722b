"""Products of two activations on CPU, ``y[b, m, o] = Σ x[b, m, k] · z[b, k, o]``.

Three forms, by what the second operand needs:

- packed: each parallel piece packs its matrices z into panels [O/L, K, L] and its rows x into
  whole register tiles, then runs the register tile of `contraction`. Pays with many rows.
- direct: the register tile reads z where it lies; rows of z contiguous, O a multiple of a vector.
- dot: one dot product an element along contiguous K of both, for one or few rows and transposed
  z: long ones by `dot`, short ones by the template of row reductions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base
from tvmfuse.schedules.anchor import BatchMatmul
from tvmfuse.schedules.cpu.block_sums import in_blocks
from tvmfuse.schedules.cpu.contraction import (
    Extents,
    Tiling,
    best_tiling,
    cropped,
    extents_of,
    lanes_for,
    padded_columns,
    structures,
    tile_anchor,
    tile_output,
)
from tvmfuse.schedules.cpu.dot import dots
from tvmfuse.schedules.strides import load
from tvmfuse.schedules.variant import OUT_ELEMWISE_FUSABLE, WrittenVariant

FAMILY = "batch_matmul"
ROWS, PANELS = "rows", "panels"  # names of the packing blocks
RTOL = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1e-2}
_SHORT = 256  # dot products below this length are left to the template of row reductions
_FEW_ROWS = 8  # from so many rows on packing is always worth its copies


def batch_matmul_variants(a: BatchMatmul, hardware: Hardware) -> tuple[WrittenVariant, ...]:
    """Kernels for ``a`` in ascending order of estimated time."""
    lanes, work = hardware.lanes(), a.flops / 2 / math.prod(a.lead)
    matrices = math.prod(a.lead) / hardware.cores
    full = lanes_for(a.O, hardware)
    found = []
    padded = padded_channels(a, hardware)
    cycles = work * padded / a.O / lanes / 0.8 + a.K * padded + a.M * a.K / 4
    found.append(_variant("packed", a, lambda: _packed(a, hardware), cycles * matrices))
    if a.y.column == 1 and full > 1:
        busy = 0.8 if a.M >= _FEW_ROWS else 0.25
        cycles = work / full / busy
        found.append(_variant("direct", a, lambda: _direct(a, hardware), cycles * matrices))
    deep = lanes_for(a.K, hardware)
    if a.x.column == 1 and a.y.row == 1 and a.M < _FEW_ROWS and deep > 1:
        short = a.K < _SHORT  # adding up the lanes costs more than the products
        cycles = work / deep * 2 + a.M * a.O * (20 if short else 45)
        build = (lambda: naive(a)) if short else (lambda: _dots(a, hardware))
        found.append(_variant("rows" if short else "dot", a, build, cycles * matrices))
    return tuple(sorted(found, key=lambda v: v.cycles))


def _variant(name: str, a: BatchMatmul, build: Callable[[], PrimFunc], cycles: float) -> Any:
    return WrittenVariant(name, a, build, cycles, RTOL[a.dtype])


def padded_channels(a: BatchMatmul, hardware: Hardware) -> int:
    """Columns of the panels: whole vectors, in a number that tiles well unless that wastes much."""
    lanes = hardware.lanes()
    options = [math.ceil(a.O / (lanes * v)) * v for v in (1, 2, 4)]
    cost = {n: n * (1.0 if n % 2 == 0 or n == 1 else 1.15) for n in options}
    return min(options, key=cost.__getitem__) * lanes


def naive(a: BatchMatmul) -> PrimFunc:
    """The product by its definition."""
    x, y, inputs = _operands(a)
    k = te.reduce_axis((0, a.K), "k")

    def body(*at: Any) -> Any:
        *lead, m, o = at
        return te.sum(x(lead, m, k) * y(lead, k, o), axis=[k])

    wide = te.compute((*a.lead, a.M, a.O), body, name="matmul")
    return _function(inputs, _narrowed(a, wide))


def _packed(a: BatchMatmul, hardware: Hardware) -> PrimFunc:
    x, y, inputs = _operands(a)
    lanes = hardware.lanes()
    rows, channels = padded_columns(a.M, hardware), padded_channels(a, hardware)
    zero = tirx.const(0, "float32")

    def panel(*at: Any) -> Any:
        *lead, group, k, lane = at
        o = group * lanes + lane
        if channels == a.O:
            return y(lead, k, o)
        return tirx.if_then_else(o < a.O, y(lead, k, o), zero)

    def row(*at: Any) -> Any:
        *lead, m, k = at
        return x(lead, m, k) if rows == a.M else x(lead, tirx.min(m, a.M - 1), k)

    panels = te.compute((*a.lead, channels // lanes, a.K, lanes), panel, name=PANELS)
    straight = rows == a.M and a.x.column == 1
    strip = None if straight else te.compute((*a.lead, rows, a.K), row, name=ROWS)
    k = te.reduce_axis((0, a.K), "k")

    def body(*at: Any) -> Any:
        *lead, m, o = at
        value = x(lead, m, k) if strip is None else strip(*lead, m, k)
        return te.sum(value * panels(*lead, o // lanes, k, o % lanes), axis=[k])

    notes = {base.FAMILY: FAMILY, base.LANES: lanes, base.STRIDE: 4 * a.K}
    wide = te.compute((*a.lead, rows, channels), body, name="matmul", attrs=notes)
    shape = (*a.lead, a.M, a.O)
    if (rows, channels) != (a.M, a.O):
        wide = te.compute(shape, lambda *i: wide(*i), name="crop")
    return _function(inputs, _narrowed(a, wide))


def _direct(a: BatchMatmul, hardware: Hardware) -> PrimFunc:
    x, y, inputs = _operands(a)
    lanes, rows = lanes_for(a.O, hardware), padded_columns(a.M, hardware)
    k = te.reduce_axis((0, a.K), "k")

    def body(*at: Any) -> Any:
        *lead, m, o = at
        row = m if rows == a.M else tirx.min(m, a.M - 1)
        return te.sum(x(lead, row, k) * y(lead, k, o), axis=[k])

    notes = {base.FAMILY: FAMILY, base.LANES: lanes, base.STRIDE: 4 * a.x.row}
    wide = te.compute((*a.lead, rows, a.O), body, name="matmul", attrs=notes)
    return _function(inputs, _narrowed(a, cropped(wide, a.M)))


def _dots(a: BatchMatmul, hardware: Hardware) -> PrimFunc:
    x, y, inputs = _operands(a)
    lanes, shape = lanes_for(a.K, hardware), (*a.lead, a.M, a.O)
    wide = dots(x, lambda lead, o, k: y(lead, k, o), shape, a.K, lanes)
    return _function(inputs, _narrowed(a, wide))


def _operands(a: BatchMatmul) -> tuple[Any, Any, list[te.Tensor]]:
    """Readers ``x(lead, m, k)`` and ``y(lead, k, o)`` in float32, and the input tensors."""
    tensors = [te.placeholder(s, d, name=f"x{i}") for i, (s, d) in enumerate(a.buffers)]

    def reader(view: Any, rows: int, columns: int) -> Any:
        def read(lead: Any, row: Any, column: Any) -> Any:
            axes = list(zip(lead, a.lead, strict=True))
            value = load(tensors[view.buffer], view, axes, (row, rows), (column, columns))
            return value if value.ty.dtype == "float32" else value.astype("float32")

        return read

    return reader(a.x, a.M, a.K), reader(a.y, a.K, a.O), tensors


def _narrowed(a: BatchMatmul, wide: te.Tensor) -> te.Tensor:
    """The sums, which are float32, in the output's type."""
    if a.dtype == "float32":
        return wide
    return te.compute(wide.shape, lambda *i: wide(*i).astype(a.dtype), name="narrow")


def _function(inputs: list[te.Tensor], out: te.Tensor) -> PrimFunc:
    func = te.create_prim_func([*inputs, out], index_dtype_override="int64")
    return func.with_attr("op_pattern", OUT_ELEMWISE_FUSABLE).with_attr("tirx.noalias", True)


class BatchMatmulTemplate:
    """The register tile of `contraction`, operands packed inside each parallel piece."""

    name = "cpu.batch_matmul"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        anchor = base.find_family(base.blocks(base.new_schedule(func)), FAMILY)
        if anchor is None:
            return None
        extents = extents_of(anchor)
        tilings = structures(extents, hardware) if tunable else [default(extents, hardware)]
        return [_schedule(func, t, extents, hardware, tunable) for t in tilings]


def default(e: Extents, hardware: Hardware) -> Tiling:
    """Whole matrices a piece where there are enough of them, so that each is packed once."""
    one = Extents(1, e.columns, e.vectors, e.lanes, e.depth, e.stride_bytes)
    if e.rows >= hardware.cores:
        t = best_tiling(one, hardware)
        return Tiling(True, t.v, t.tw, 1, e.columns // t.tw, e.vectors // t.v)
    return best_tiling(e if e.rows > 1 else one, hardware)


def _schedule(func: PrimFunc, t: Tiling, e: Extents, hardware: Hardware, tunable: bool) -> Schedule:
    sch = base.new_schedule(func)
    block = base.find_family(base.blocks(sch), FAMILY)
    assert block is not None
    base.inline_producers(sch, block.rv, keep=(ROWS, PANELS))
    packing = list(sch.get_producers(block.rv))
    out = base.detach_output(sch, block.rv)
    partial = in_blocks(sch, block)
    tile_loop, inner = tile_output(sch, out, t, e, hardware, tunable)
    piece = sch.get_loops(out)[0]
    tile_anchor(sch, block.rv, tile_loop, t, e.lanes, partial)
    for loop in inner[:-1]:
        sch.unroll(loop)
    sch.vectorize(inner[-1])
    for producer in packing:
        sch.compute_at(producer, piece, preserve_unit_loops=True)
        base.split_vector(sch, sch.get_loops(producer)[-1], hardware.lanes(), parallel=False)
    return sch
