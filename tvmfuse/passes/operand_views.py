"""Where an operand is stored, through the data movement between there and the operator.

Slices, transposes, reshapes, broadcasts and repeats become offsets and strides; constant factors
are collected. A kernel that takes them along needs no copy of its operand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmfuse.graph import Graph, Node
from tvmfuse.passes.relax_tools import array_of, ints, shape_of
from tvmfuse.passes.views import Strided, merged, split, whole
from tvmfuse.schedules.anchor import View

_MAX_MOVES = 16  # looked through between an operand and where it is stored


@dataclass(frozen=True)
class Place:
    """An operand as a rearrangement of ``source``, times ``scale``; axes (…lead, row, column)."""

    source: Any
    view: Strided
    scale: float = 1.0


def places(graph: Graph, operand: Any, scales: bool) -> Iterator[Place]:
    """``operand`` as a view of itself, of what it was moved from, and so on."""
    chain: list[Any] = []
    factor, source = 1.0, operand
    for _ in range(_MAX_MOVES):
        shape = shape_of(source)
        view: Strided | None = whole(shape) if shape is not None else None
        for move in reversed(chain):
            view = moved(move, view) if view is not None else None
        if view is not None:
            yield Place(source, view, factor)
        node = graph.node(source)
        if node is None:
            return
        scale = _scaling(node) if scales else None
        if scale is not None:
            source, by = scale
            factor *= by
        elif node.op in _MOVES:
            chain.append(node.value)
            source = node.value.args[0]
        else:
            return


_MOVES = frozenset(
    ("permute_dims", "reshape", "strided_slice", "broadcast_to", "expand_dims", "squeeze", "repeat")
)


def moved(call: relax.Call, view: Strided) -> Strided | None:
    """The result of one move as a view of what its argument is a view of."""
    name, shape = str(call.op.name).removeprefix("relax."), shape_of(call)
    if shape is None:
        return None
    if name == "permute_dims":
        axes = call.attrs.axes
        order = ints(axes) if axes is not None else tuple(reversed(range(len(shape))))
        return view.permute([a % len(shape) for a in order])
    if name == "broadcast_to":
        return view.broadcast(shape)
    if name == "repeat":
        axis = call.attrs.axis
        return (
            None if axis is None else view.repeat(int(call.attrs.repeats), int(axis) % len(shape))
        )
    if name == "strided_slice":
        return _sliced(call, view)
    return view.reshape(shape)


def _sliced(call: relax.Call, view: Strided) -> Strided | None:
    axes, begin, end, *step = (ints(a.fields) for a in call.args[1:])
    steps = step[0] if step else (1,) * len(axes)
    found: Strided | None = view
    for axis, b, e, s in zip(axes, begin, end, steps, strict=True):
        if found is None or s < 1:
            return None
        axis %= len(view.axes)
        start, stop, _ = slice(b, e, s).indices(found.shape[axis])
        found = found.slice(axis, start, stop, s)
    return found


def _scaling(node: Node) -> tuple[Any, float] | None:
    """What a node multiplies by one constant, and that constant."""
    if node.op not in ("multiply", "divide") or node.dtype != "float32":
        return None
    for mine, other in ((0, 1), (1, 0)):
        values = array_of(node.value.args[other])
        if values is None or not values.size or (node.op == "divide" and other == 0):
            continue
        first = float(values.reshape(-1)[0])
        source = node.value.args[mine]
        uniform = bool(np.all(values == first)) and math.isfinite(first) and first != 0.0
        if uniform and shape_of(source) == node.shape:
            return source, first if node.op == "multiply" else 1.0 / first
    return None


def stored(buffer: int, view: Strided, extents: list[tuple[int, ...]]) -> View:
    """The record of a view whose axes are (…lead, row, column); ``extents`` split its lead."""
    *lead, rows, columns = view.axes
    strides: list[int] = []
    for factors, parts in zip(lead, extents, strict=True):
        strides += split(factors, parts) or ()
    row, column = merged(rows), merged(columns)
    assert row is not None and column is not None  # _fits has looked
    return View(buffer, view.offset, tuple(strides), row[1], column[1])
