"""Long products of sums are taken in blocks whose sums are then added.

One accumulator over 4,608 products is off by several times what eager PyTorch is; partial sums of
a few hundred are not (`tvmfuse.precision.accumulation`: n becomes the length of a block plus their
number). The price is one load, add and store of each accumulator a block.
"""

from __future__ import annotations

import math
from typing import Any

from tvm.s_tir import Schedule

from tvmfuse.schedules import base

LONGEST = 128  # terms of a block
_SHORTEST = 64  # below, adding up costs more than a few percent


def block_length(extents: tuple[int, ...]) -> int:
    """Terms of a block of a sum over axes of these extents; all where it stays whole.

    A block is made of whole inner axes and a factor of the next one, so that its loops need no
    guards: up to ``LONGEST`` terms, or up to twice as many where fewer would be a short block (56
    channels under a window of 3 x 3 are three blocks of 168). A sum whose extents have no such
    factor (a prime number of terms) stays whole.
    """
    total = math.prod(extents)
    if total <= 2 * LONGEST:
        return total
    length = 1
    for extent in reversed(extents):
        factor = max(base.divisors(extent, max(1, LONGEST // length)))
        if factor < extent and length * factor < _SHORTEST:
            longer = base.divisors(extent, 2 * LONGEST // length)
            factor = min((d for d in longer if length * d >= _SHORTEST), default=factor)
        length *= factor
        if factor < extent:
            break
    return length if length >= _SHORTEST else total


def in_blocks(sch: Schedule, anchor: base.Block) -> Any | None:
    """Give a reduction partial sums; returns the block that computes them, None where it has none.

    The anchor, which must still stand at the root, is left with one reduced axis: the blocks.
    """
    length = block_length(anchor.reduction)
    if length == math.prod(anchor.reduction):
        return None
    outer = sch.get_loops(anchor.rv)[-len(anchor.reduction) :]
    while length > 1:
        extent = base.loop_extent(sch, outer[-1])
        factor = math.gcd(extent, length)
        loop = outer.pop()
        if factor < extent:
            outer.append(sch.split(loop, [extent // factor, factor])[0])
        length //= factor
    return sch.rfactor(sch.fuse(*outer) if len(outer) > 1 else outer[0], 0)
