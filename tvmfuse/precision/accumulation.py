"""How a sum must be accumulated so that it keeps its digits.

A plain float sum of n terms, in ``LANES`` independent partial sums, is off by up to
``n / LANES · u`` of the sum of magnitudes (Higham, *Accuracy and Stability of Numerical
Algorithms*, §4.2), where u is half the distance of 1 to the next number. Summing blocks first and
then their sums (pairwise summation with few levels) replaces n by the block's length plus the
number of blocks.
"""

from __future__ import annotations

import math

LANES = 16  # partial sums that the row templates keep on the widest supported vectors
BLOCK = 256  # terms of a block of a compensated sum
MAX_BOUND = 1e-5  # largest bound that a plain sum may have; layers are verified to this
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def plain_bound(count: int, dtype: str, lanes: int = LANES) -> float:
    """Bound of a plain sum's error, relative to the sum of magnitudes."""
    return max(1.0, count / lanes) * UNIT_ROUNDOFF[dtype]


def needs_blocks(count: int, dtype: str, lanes: int = LANES) -> bool:
    """Whether a sum of ``count`` terms is to be taken in blocks.

    Parameters
    ----------
    count
        Terms of the sum.
    dtype
        Type of the accumulator; one of :data:`UNIT_ROUNDOFF`.
    lanes
        Independent partial sums that the kernel keeps: 1 where vectors run along an axis that is
        not summed.
    """
    return plain_bound(count, dtype, lanes) > MAX_BOUND


def block_extents(extents: tuple[int, ...], dtype: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split the axes of a sum into those of the blocks' sums and those inside a block.

    Parameters
    ----------
    extents
        Of the reduced axes, outermost first.
    dtype
        Type of the accumulator.

    Returns
    -------
    outer, inner
        ``outer`` is empty where one plain sum is good enough, or where there is only one axis to
        sum along.
    """
    total = 1
    for extent in extents:
        total *= extent
    if len(extents) < 2 or not needs_blocks(total, dtype):
        return (), extents
    return extents[:-1], extents[-1:]


def split(count: int) -> tuple[int, int]:
    """Number of blocks and terms of a block for a compensated sum along one axis.

    The last block may be short. A sum of up to ``2 * BLOCK`` terms is one block.
    """
    return (1, count) if count <= 2 * BLOCK else (-(-count // BLOCK), BLOCK)


def even_split(count: int) -> tuple[int, int]:
    """Cut one axis into equal blocks: their number and their length, which are factors of it.

    The length is the factor nearest to the square root, which makes the longer of the two sums as
    short as equal blocks allow; a prime number of terms stays one block.
    """
    length = max(d for d in range(1, math.isqrt(count) + 1) if count % d == 0)
    return (1, count) if length == 1 else (count // length, length)
