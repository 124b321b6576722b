"""Kernels whose operand or result lies in a larger tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad, TensorRegion
from tvm.tirx import PrimFunc

from tvmfuse.errors import BuildError
from tvmfuse.passes.relax_tools import ints, mentions
from tvmfuse.schedules.strides import row_major, split_axes

# On a kernel that reads parts of tensors: elements of each parameter that it reads; -1 for all.
READS = "tvmfuse.reads_elements"


@dataclass(frozen=True)
class Step:
    """From a tensor to one in which it lies.

    Parameters
    ----------
    own
        The tensor's shape.
    seen
        The same elements with axes merged.
    axis, offset
        Where these lie in the larger tensor.
    """

    own: tuple[int, ...]
    seen: tuple[int, ...]
    axis: int
    offset: int

    def groups(self) -> list[list[int]]:
        """Which axes each axis of ``seen`` is merged from."""
        found = split_axes(self.seen, self.own)
        if found is None:
            raise BuildError(f"a tensor of shape {self.own} is no part of one of {self.seen}")
        return found

    def at(self, indices: Sequence[Any]) -> list[Any]:
        """Where an element lies in the larger tensor."""
        found = []
        for group in self.groups():
            strides = row_major([self.own[a] for a in group])
            wide = [(a, s) for a, s in zip(group, strides, strict=True) if self.own[a] != 1]
            terms = [
                indices[a] if s == 1 else indices[a] * tirx.const(s, "int64")
                for a, s in wide or list(zip(group, strides, strict=True))[:1]
            ]
            found.append(sum(terms[1:], terms[0]) if terms else tirx.const(0, "int64"))
        if self.offset:
            found[self.axis] = found[self.axis] + tirx.const(self.offset, "int64")
        return found

    def region(self, ranges: Sequence[Any]) -> list[Any]:
        """What of the larger tensor a region touches, or more where axes are merged."""
        mins = self.at([r.min for r in ranges])
        found = []
        for axis, (group, start) in enumerate(zip(self.groups(), mins, strict=True)):
            wide = [a for a in group if self.own[a] != 1]
            begin = self.offset if axis == self.axis else 0
            if len(wide) < 2:
                extent = ranges[wide[0]].extent if wide else tirx.const(1, "int64")
                found.append(Range.from_min_extent(start, extent))
            else:
                found.append(
                    Range.from_min_extent(
                        tirx.const(begin, "int64"), tirx.const(self.seen[axis], "int64")
                    )
                )
        return found


def relocated(
    kernel: PrimFunc,
    place: int,
    shape: tuple[int, ...],
    steps: Sequence[Step],
) -> PrimFunc:
    """The kernel with one of its tensors inside a larger one.

    Parameters
    ----------
    kernel
        Scheduled; its last parameter is its result.
    place
        Of the parameter.
    shape
        Of the larger tensor.
    steps
        From the parameter to the larger tensor.

    Raises
    ------
    BuildError
        The kernel takes the address of the parameter, or has it in another shape.
    """
    old = kernel.params[place]
    own = ints(old.ty.shape)
    if not steps or own != steps[0].own or not _fits(steps, shape):
        raise BuildError(f"a tensor of shape {own} is no part of one of {shape}")
    big = tirx.decl_buffer(shape, str(old.ty.dtype), name=str(old.name))

    def at(indices: Any) -> list[Any]:
        found = list(indices)
        for step in steps:
            found = step.at(found)
        return found

    def region(ranges: Any) -> list[Any]:
        found = list(ranges)
        for step in steps:
            found = step.region(found)
        return found

    body = in_buffer(kernel.body, old, big, at, region)
    if body is None:
        raise BuildError(f"a kernel takes the address of {old.name}: it cannot be moved")
    params = [big if n == place else p for n, p in enumerate(kernel.params)]
    return PrimFunc(params, body, kernel.ret_type, attrs=kernel.attrs)


def in_buffer(
    body: Any,
    old: Any,
    new: Any,
    at: Callable[[Any], list[Any]] = list,
    region: Callable[[Any], list[Any]] = list,
) -> Any:
    """A statement that reads and writes ``new`` where it did ``old``; None if it takes an address.

    Parameters
    ----------
    body
        The statement.
    old, new
        Buffers.
    at, region
        From indices and ranges of ``old`` to those of ``new``; the same when left out.
    """

    def store(node: Any) -> Any:
        mine = node.buffer.same_as(old)
        return tirx.BufferStore(new, node.value, at(node.indices)) if mine else node

    def load(node: Any) -> Any:
        return tirx.BufferLoad(new, at(node.indices)) if node.source.same_as(old) else node

    def touched(node: Any) -> Any:
        mine = node.source.same_as(old)
        return tirx.BufferRegion(new, region(node.region)) if mine else node

    moved = tvm_ffi.structural_map(
        body, [(tirx.BufferStore, store), (TensorLoad, load), (TensorRegion, touched)]
    )
    return None if mentions(moved, old) else moved


def _fits(steps: Sequence[Step], shape: tuple[int, ...]) -> bool:
    larger = [*(step.own for step in steps[1:]), shape]
    return all(
        len(step.seen) == len(outer)
        and step.offset + step.seen[step.axis] <= outer[step.axis]
        and all(
            s == o for a, (s, o) in enumerate(zip(step.seen, outer, strict=True)) if a != step.axis
        )
        for step, outer in zip(steps, larger, strict=True)
    )


def reading(kernel: PrimFunc, place: int, elements: int) -> PrimFunc:
    """The kernel with a note that it reads only so many elements of a parameter."""
    known = reads_of(kernel)
    return kernel.with_attr(READS, [*known[:place], elements, *known[place + 1 :]])


def reads_of(kernel: PrimFunc) -> list[int]:
    """Elements of each parameter that a kernel reads; -1 for all of them."""
    known = (kernel.attrs or {}).get(READS)
    return [-1] * len(kernel.params) if known is None else [int(e) for e in known]
