"""Rearrangements of a tensor as strides: slices, transposes, reshapes, broadcasts, repeats.

A view says where the elements of a tensor lie in another one that is stored row by row. Each axis
is a list of factors ``(extent, stride)``, outermost first, so that a reshape need not end it:
``reshape(transpose(x[B, S, H, D]), [B·H, S, D])`` has the factors of B and of H on its first axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tvmfuse.schedules.strides import row_major

Factor = tuple[int, int]
Factors = tuple[Factor, ...]


@dataclass(frozen=True)
class Strided:
    """A tensor as a rearrangement of a stored one.

    Parameters
    ----------
    offset
        Place of its first element, in elements.
    axes
        Factors of each axis; none for an axis of extent 1.
    """

    offset: int
    axes: tuple[Factors, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return tuple(math.prod(e for e, _ in axis) for axis in self.axes)

    def permute(self, order: Sequence[int]) -> Strided:
        """Axes in another order."""
        return Strided(self.offset, tuple(self.axes[a] for a in order))

    def reshape(self, shape: Sequence[int]) -> Strided | None:
        """The same elements in the same order in another shape; None if an axis would need two
        strides at once."""
        left = [f for axis in self.axes for f in axis]
        axes = []
        for extent in shape:
            taken: list[Factor] = []
            while extent > 1:
                if not left:
                    return None
                size, stride = left.pop(0)
                if size > extent:
                    if size % extent:
                        return None
                    left.insert(0, (size // extent, stride))
                    size, stride = extent, stride * (size // extent)
                if extent % size:
                    return None
                taken.append((size, stride))
                extent //= size
            axes.append(tuple(taken))
        return None if left else Strided(self.offset, tuple(axes))

    def slice(self, axis: int, begin: int, end: int, step: int = 1) -> Strided | None:
        """``[begin:end:step]`` of one axis; None if the axis has no single stride."""
        single = merged(self.axes[axis])
        extent = len(range(begin, end, step))
        if extent == self.shape[axis]:
            return self
        if single is None or extent < 1:
            return None
        stride = single[1]
        new: Factors = ((extent, stride * step),) if extent > 1 else ()
        axes = (*self.axes[:axis], new, *self.axes[axis + 1 :])
        return Strided(self.offset + begin * stride, axes)

    def broadcast(self, shape: Sequence[int]) -> Strided:
        """Broadcast to ``shape`` as NumPy does."""
        extra = len(shape) - len(self.axes)
        own = [*[()] * extra, *self.axes]
        axes = tuple(
            ((extent, 0),) if not factors and extent > 1 else factors
            for factors, extent in zip(own, shape, strict=True)
        )
        return Strided(self.offset, axes)

    def repeat(self, times: int, axis: int) -> Strided:
        """Every element of ``axis`` ``times`` times in a row."""
        factors = (*self.axes[axis], (times, 0)) if times > 1 else self.axes[axis]
        return Strided(self.offset, (*self.axes[:axis], factors, *self.axes[axis + 1 :]))

    def inverse(self, source: Sequence[int]) -> Strided | None:
        """The source, of shape ``source``, as a rearrangement of this; None if it loses any."""
        if math.prod(source) != math.prod(self.shape) or self.offset:
            return None
        flat = [f for axis in self.axes for f in axis]
        places = row_major([e for e, _ in flat])
        back = sorted(
            ((s, e, place) for (e, s), place in zip(flat, places, strict=True)), reverse=True
        )
        distinct = row_major([e for _, e, _ in back])
        if [s for s, _, _ in back] != distinct:
            return None  # elements that are missing or twice
        return Strided(0, (tuple((e, place) for _, e, place in back),)).reshape(source)


def whole(shape: Sequence[int]) -> Strided:
    """A stored tensor as it is."""
    factors = zip(shape, row_major(shape), strict=True)
    return Strided(0, tuple(((e, s),) if e > 1 else () for e, s in factors))


def merged(factors: Factors) -> Factor | None:
    """Factors as a single one; None if their strides do not fit together."""
    extent, stride = 1, 0
    for size, step in reversed(factors):
        if extent > 1 and step != stride * extent:
            return None
        extent, stride = extent * size, stride if extent > 1 else step
    return extent, stride


def refined(axes: Iterable[Factors]) -> tuple[int, ...] | None:
    """Extents into which one axis must be split so that every operand has a stride for each.

    Parameters
    ----------
    axes
        The factors of this axis in each operand; all of one product.

    Returns
    -------
    tuple of int or None
        Outermost first; None if the factors cut one another.
    """
    cuts = {1}
    for factors in axes:
        inner = 1
        for size, _ in reversed(factors):
            inner *= size
            cuts.add(inner)
    ordered = sorted(cuts)
    extents = []
    for inner, outer in itertools.pairwise(ordered):
        if outer % inner:
            return None
        extents.append(outer // inner)
    return tuple(reversed(extents))


def split(factors: Factors, extents: Sequence[int]) -> tuple[int, ...] | None:
    """The stride of each of ``extents``, into which an axis of ``factors`` is split."""
    view = Strided(0, (factors,)).reshape(extents)
    if view is None:
        return None
    strides = [merged(axis) for axis in view.axes]
    return None if any(s is None for s in strides) else tuple(s[1] for s in strides if s)
