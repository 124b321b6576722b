"""Writing kernels as TVMScript: lines with indentation, constants as 64-bit integers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tvm
from tvm.tirx import PrimFunc

from tvmfuse.schedules.strides import by_axis, row_major


class Writer:
    """Text of one PrimFunc, a line at a time."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str) -> None:
        """Append one line at the current depth."""
        self._lines.append("    " * self._depth + text)

    @contextlib.contextmanager
    def under(self, head: str) -> Iterator[None]:
        """Lines inside ``head`` (a loop, a block, a condition), which is written first."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    @contextlib.contextmanager
    def loops(self, *ranges: tuple[str, int, str]) -> Iterator[None]:
        """Nested loops ``(variable, extent, kind)``, kind e.g. ``"serial"``."""
        for name, extent, kind in ranges:
            self.line(f"for {name} in T.{kind}({i64(extent)}):")
            self._depth += 1
        yield
        self._depth -= len(ranges)

    def function(self) -> PrimFunc:
        """Parse what was written."""
        return tvm.script.from_source("\n".join(self._lines))


def i64(value: int) -> str:
    """A 64-bit integer constant."""
    return f"T.int64({value})"


def buffer(shape: Sequence[int], dtype: str) -> str:
    """Type of a buffer parameter."""
    return f'T.Buffer(({", ".join(i64(e) for e in shape)},), "{dtype}")'


def linear(offset: int, terms: Sequence[tuple[str, int]]) -> str:
    """``offset + Σ variable · factor``, without what is zero."""
    parts = [v if f == 1 else f"{v} * {i64(f)}" for v, f in terms if f]
    return " + ".join(parts + ([i64(offset)] if offset or not parts else []))


def element(shape: Sequence[int], offset: int, terms: Sequence[tuple[str, int, int]]) -> str:
    """Indices of the element at ``offset + Σ variable · stride`` of a row-major tensor.

    Parameters
    ----------
    shape
        Of the tensor.
    terms
        ``(variable, stride, extent)``: the variable runs over ``range(extent)``.
    """
    axes = by_axis(shape, offset, [(stride, extent) for _, stride, extent in terms])
    if axes is not None:
        return ", ".join(linear(b, [(terms[n][0], f) for n, f in used]) for b, used in axes)
    flat = linear(offset, [(v, s) for v, s, _ in terms])
    places = zip(row_major(shape), shape, strict=True)
    return ", ".join(f"({flat}) // {i64(s)} % {i64(e)}" for s, e in places)
