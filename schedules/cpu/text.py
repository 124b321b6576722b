"""Writing kernels as text in the words of TVMScript, constants as 64-bit integers.

The text is Python over TVM's IR builder and is run as such: TVM's own parser, which evaluates
every node of every line by itself, takes two seconds for what this does in a tenth.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from tvmfuse.schedules.strides import by_axis, row_major


class Writer:
    """Text of one PrimFunc, a line at a time."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str) -> None:
        """Append one line: ``buffer[indices] = value``, or a statement of the builder."""
        target, separator, value = text.partition("] = ")
        if separator:
            name, _, indices = target.partition("[")
            text = f"store({name}, {value}, [{indices}])"
        self._lines.append("    " * self._depth + text)

    def bind(self, name: str, value: str) -> None:
        """Give a variable, buffer or axis its name."""
        self.line(f"{name} = named({name!r}, {value})")

    @contextlib.contextmanager
    def under(self, *heads: str) -> Iterator[None]:
        """Lines inside frames of the builder, e.g. ``T.sblock("tile")``."""
        for head in heads:
            self.line(f"with {head}:")
            self._depth += 1
        yield
        self._depth -= len(heads)

    @contextlib.contextmanager
    def kernel(self, parameters: Sequence[tuple[str, Sequence[int], str]]) -> Iterator[None]:
        """The whole function; ``parameters`` are (name, shape, element type)."""
        with self.under("T.prim_func(is_private=True, s_tir=True)"):
            self.line('T.func_name("main")')
            for name, shape, dtype in parameters:
                extents = ", ".join(i64(e) for e in shape)
                self.line(f'{name} = T.arg({name!r}, T.Buffer(({extents},), "{dtype}"))')
            self.line('T.func_attr({"tirx.noalias": True})')
            yield

    @contextlib.contextmanager
    def loops(self, *ranges: tuple[str, int, str]) -> Iterator[None]:
        """Nested loops ``(variable, extent, kind)``, kind e.g. ``"serial"``."""
        for name, extent, kind in ranges:
            self.line(f"with T.{kind}({i64(extent)}) as {name}:")
            self._depth += 1
            self.line(f"named({name!r}, {name})")
        yield
        self._depth -= len(ranges)

    @contextlib.contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Lines that run if a condition holds; none if it is empty."""
        if not condition:
            yield
            return
        with self.under(f"T.If({condition})", "T.Then()"):
            yield

    def function(self) -> PrimFunc:
        """Build what was written."""
        with IRBuilder() as builder:
            words = {"T": T, "named": IRBuilder.name, "store": _store, "Part": Part}
            exec("\n".join(self._lines), words)
        return builder.get()


class Part:
    """A tensor of row-major ``shape`` that lies in a one-dimensional buffer from ``offset`` on."""

    def __init__(self, buffer: Any, offset: int, shape: Sequence[int]) -> None:
        self.buffer = buffer
        self._offset, self._strides = offset, row_major(shape)

    def place(self, indices: Sequence[Any]) -> Any:
        """Index of an element in the buffer."""
        parts = (i if s == 1 else i * s for i, s in zip(indices, self._strides, strict=True))
        return sum(parts, T.int64(self._offset))

    def __getitem__(self, indices: Any) -> Any:
        return self.buffer[self.place(indices if isinstance(indices, tuple) else (indices,))]


def _store(target: Any, value: Any, indices: Sequence[Any]) -> None:
    if isinstance(target, Part):
        T.buffer_store(target.buffer, value, [target.place(indices)])
    else:
        T.buffer_store(target, value, list(indices))


def i64(value: int) -> str:
    """A 64-bit integer constant."""
    return f"T.int64({value})"


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
