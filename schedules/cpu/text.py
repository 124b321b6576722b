"""Writing kernels as TVMScript: lines with indentation, constants as 64-bit integers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tvm
from tvm.tirx import PrimFunc


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

    Returns
    -------
    str
        One index an axis; linear where every term stays within one axis, else by division.
    """
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    used: list[list[tuple[str, int]]] = [[] for _ in shape]
    begin = [offset // s % e for s, e in zip(strides, shape, strict=True)]
    reach = list(begin)
    for variable, stride, extent in terms:
        if stride == 0 or extent == 1:
            continue
        fits = (a for a, s in enumerate(strides) if stride % s == 0 and shape[a] > 1)
        axis = next(fits, len(shape) - 1)
        used[axis].append((variable, stride // strides[axis]))
        reach[axis] += stride // strides[axis] * (extent - 1)
    if all(r < e for r, e in zip(reach, shape, strict=True)):
        return ", ".join(linear(b, t) for b, t in zip(begin, used, strict=True))
    flat = linear(offset, [(v, s) for v, s, _ in terms])
    return ", ".join(
        f"({flat}) // {i64(s)} % {i64(e)}" for s, e in zip(strides, shape, strict=True)
    )
