"""Elements of row-major tensors that are given by one offset and a stride for each variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfuse.schedules.anchor import View

Place = tuple[int, list[tuple[int, int]]]


def row_major(shape: Sequence[int]) -> list[int]:
    """Strides of a tensor that is stored row by row."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return strides


def split_axes(source: Sequence[int], shape: Sequence[int]) -> list[list[int]] | None:
    """Which axes of ``shape`` each axis of ``source`` is split into; None if any are merged."""
    left, groups = list(range(len(shape))), []
    for extent in source:
        taken: list[int] = []
        product = 1
        while left and (product < extent or (extent == 1 and not taken and shape[left[0]] == 1)):
            taken.append(left.pop(0))
            product *= shape[taken[-1]]
        if product != extent:
            return None
        groups.append(taken)
    if any(shape[a] != 1 for a in left) or (left and not groups):
        return None
    if left:
        groups[-1] += left
    return groups


def by_axis(
    shape: Sequence[int], offset: int, terms: Sequence[tuple[int, int]]
) -> list[Place] | None:
    """``offset + Σ variable · stride`` as one linear index an axis, without divisions.

    Parameters
    ----------
    shape
        Of the tensor.
    terms
        ``(stride, extent)`` of each variable, which runs over ``range(extent)``.

    Returns
    -------
    list or None
        For each axis the constant and the ``(number of the variable, factor)`` that are added;
        None where a variable runs over more than one axis.
    """
    strides = row_major(shape)
    begin = [offset // s % e for s, e in zip(strides, shape, strict=True)]
    reach, used = list(begin), [list[tuple[int, int]]() for _ in shape]
    for number, (stride, extent) in enumerate(terms):
        if stride == 0 or extent == 1:
            continue
        fits = (a for a, s in enumerate(strides) if stride % s == 0 and shape[a] > 1)
        axis = next(fits, len(shape) - 1)
        used[axis].append((number, stride // strides[axis]))
        reach[axis] += stride // strides[axis] * (extent - 1)
    if any(r >= e for r, e in zip(reach, shape, strict=True)):
        return None
    return list(zip(begin, used, strict=True))


def load(
    tensor: Any, view: View, lead: Sequence[tuple[Any, int]], row: tuple[Any, int],
    column: tuple[Any, int],
) -> Any:  # fmt: skip
    """The element of a TE tensor that a view gives for ``(variable, extent)`` of each axis."""
    shape = [int(e) for e in tensor.shape]
    variables = [*lead, row, column]
    strides = [*view.lead, view.row, view.column]
    terms = [(s, extent) for s, (_, extent) in zip(strides, variables, strict=True)]
    axes = by_axis(shape, view.offset, terms)
    if axes is not None:
        return tensor(*[b + sum(variables[n][0] * f for n, f in used) for b, used in axes])
    flat = view.offset + sum(v * s for s, (v, _) in zip(strides, variables, strict=True))
    return tensor(*[flat // s % e for s, e in zip(row_major(shape), shape, strict=True)])
