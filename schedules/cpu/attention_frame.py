"""What an attention kernel is written with: its sizes, its operands, loops over vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvmfuse.schedules.anchor import Attention, View
from tvmfuse.schedules.cpu.text import Writer, element, i64


@dataclass(frozen=True)
class Blocking:
    """Sizes that a variant fixes.

    Parameters
    ----------
    tq
        Query rows in the register tile.
    v
        Vectors in the register tile.
    tiles
        Tiles of query rows in one parallel piece.
    keys
        Keys in one block, a multiple of a vector.
    direct
        Whether keys and values are read where they lie.
    """

    tq: int
    v: int
    tiles: int
    keys: int
    direct: bool

    @property
    def name(self) -> str:
        """For logs and reports."""
        kind = "direct" if self.direct else "packed"
        return f"{kind}_q{self.tq}x{self.tiles}_k{self.keys}"


def round_up(value: int, multiple: int) -> int:
    """Smallest multiple ≥ ``value``."""
    return math.ceil(value / multiple) * multiple


_SKEW = 5  # vectors between two parts of the workspace


class Frame:
    """Sizes and operands of one kernel, and the text that is written so far."""

    def __init__(self, a: Attention, b: Blocking, lanes: int) -> None:
        self.a, self.b, self.lanes = a, b, lanes
        self.w = Writer()
        self._places: dict[str, tuple[int, tuple[int, ...]]] = {}
        self.rows = b.tq * b.tiles  # of one piece
        self.blocks = math.ceil(a.SK / b.keys)
        self.width = round_up(a.DV, lanes)
        self.leads = [f"v{i}" for i in range(len(a.lead))]

    def _parts(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """One workspace for all: apart, each would begin on a page, and evict the others."""
        offset = 0
        for name, shape in shapes.items():
            self._places[name] = offset, shape
            offset += round_up(math.prod(shape), self.lanes) + _SKEW * self.lanes
        self._buffer("ws", (offset,), "global")
        for name, (begin, shape) in self._places.items():
            self.w.line(f"{name} = Part(ws, {begin}, {shape})")

    def _buffer(self, name: str, shape: tuple[int, ...], scope: str) -> None:
        extents = ", ".join(i64(e) for e in shape)
        self.w.bind(name, f'T.sblock_alloc_buffer(({extents},), scope="{scope}")')

    def _at(self, view: View, row: str, rows: int, column: str, columns: int) -> str:
        """An element of an operand; ``row`` and ``column`` are variables in bounds."""
        shape, dtype = (
            self.a.buffers[view.buffer] if view.buffer >= 0 else (self.a.out_shape, self.a.dtype)
        )
        terms = [
            *zip(self.leads, view.lead, self.a.lead, strict=True),
            (row, view.row, rows),
            (column, view.column, columns),
        ]
        name = f"b{view.buffer}" if view.buffer >= 0 else "out"
        text = f"{name}[{element(shape, view.offset, terms)}]"
        if view.buffer < 0 or dtype in ("float32", "bool"):
            return text
        return f'T.Cast("float32", {text})'

    def _row(self, row: str) -> str:
        """A query row, clamped: rows that fill up the last tile repeat the last one."""
        if self.a.SQ % self.rows == 0:
            return f"({row})"
        return f"T.min({row}, {i64(self.a.SQ - 1)})"

    def _key(self, key: str) -> str:
        if self.a.SK % self.b.keys == 0:
            return f"({key})"
        return f"T.min({key}, {i64(self.a.SK - 1)})"

    def _vector(self, name: str, extent: int, contiguous: bool, body: Callable[[str], str]) -> None:
        """A loop of ``body(index)``: vectors, then what is left one by one."""
        w, lanes = self.w, self.lanes if contiguous else 1
        whole = extent // lanes
        if whole and lanes > 1:
            with w.loops((f"{name}o", whole, "serial"), ("n", lanes, "vectorized")):
                w.line(body(f"{name}o * {i64(lanes)} + n"))
        left = extent - whole * lanes if lanes > 1 else extent
        if left:
            with w.loops((name, left, "serial")):
                w.line(body(name if extent == left else f"{name} + {i64(extent - left)}"))

    def _chunks(self, extent: int) -> list[tuple[int, int, int]]:
        """Register tiles over ``extent`` columns: (first column, how many, vectors in each)."""
        tile = self.b.v * self.lanes
        whole, left = divmod(extent, tile)
        found = [(0, whole, self.b.v)] if whole else []
        return found + ([(whole * tile, 1, left // self.lanes)] if left else [])
