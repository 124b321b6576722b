"""A candidate that is several kernels: the parts of a group, called one behind the other.

It takes the group's arguments and gives the group's result, so that the measuring child checks
and times it as it does one kernel; what a part hands to the next stays where the next finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm

from tvmfuse.hardware.record import Hardware
from tvmfuse.schedules.anchor import from_text
from tvmfuse.schedules.variant import Variant
from tvmfuse.schedules.variants import variants


@dataclass(frozen=True)
class Packing:
    """A weight that the group takes as it is and the part in the layout of its variant.

    Parameters
    ----------
    operand
        Which operand of the part it is.
    anchor
        The part's record, as text: variants hold functions, which no pipe carries.
    variant
        Which of the anchor's variants.
    """

    operand: int
    anchor: str
    variant: int


@dataclass(frozen=True)
class Link:
    """One kernel of a chain.

    Parameters
    ----------
    module
        Scheduled, with one function ``main``.
    operands
        Where its inputs are from: an argument of the group, or ``~n`` for the result of link n.
    shape, dtype
        Of its result.
    packing
        See :class:`Packing`.
    """

    module: Any
    operands: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    packing: Packing | None = None


@dataclass(frozen=True)
class Chain:
    """Kernels in the order of their calls; the last one gives the group's result."""

    links: tuple[Link, ...]
    hardware: Hardware


class Runner:
    """A compiled chain, called as one kernel is: with the arguments and the result's tensor."""

    def __init__(self, chain: Chain, compile_one: Callable[[Any], Any]) -> None:
        self._links, self._hardware = chain.links, chain.hardware
        self._calls = [compile_one(link.module) for link in chain.links]
        self._between = [tvm.runtime.empty(k.shape, k.dtype) for k in chain.links[:-1]]
        self._packed: dict[tuple[int, int], Any] = {}

    def prepare(self, sets: Sequence[Sequence[Any]]) -> None:
        """Pack the weights of every set of arguments, so that no call has to."""
        for place, link in enumerate(self._links):
            packing = link.packing
            if packing is None:
                continue
            found = variants(from_text(packing.anchor), self._hardware)[packing.variant]
            assert isinstance(found, Variant)
            index = link.operands[packing.operand]
            for arguments in sets:
                packed = found.pack(arguments[index].numpy())
                self._packed[place, id(arguments[index])] = tvm.runtime.tensor(packed)

    def __call__(self, *arguments: Any) -> None:
        """Run all kernels; the last argument takes the result."""
        between = [*self._between, arguments[-1]]
        for place, (link, call) in enumerate(zip(self._links, self._calls, strict=True)):
            given = [arguments[o] if o >= 0 else between[~o] for o in link.operands]
            if link.packing is not None:
                at = link.packing.operand
                given[at] = self._packed[place, id(given[at])]
            call(*given, between[place])
