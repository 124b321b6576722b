"""One operator that could join a group, as the rules judge it."""

from __future__ import annotations

from dataclasses import dataclass

# TVM's OpPatternKind
ELEMENTWISE, BROADCAST, INJECTIVE, REDUCTION, ANCHOR = range(5)
OPAQUE = 8


@dataclass(frozen=True)
class Step:
    """One operator and the group that it could join.

    Parameters
    ----------
    name
        The variable that it binds.
    op
        What it computes.
    kind
        TVM's OpPatternKind.
    dtype, rank
        Of its result; rank -1 when the shape is unknown.
    elements
        Elements of its result.
    before
        Elements of the group's value that it reads.
    costly
        Whether computing that value again costs more than a few additions.
    layout
        For a change of an image's layout beside a convolution: why the convolution cannot take it
        over; empty where it can.
    """

    name: str
    op: str
    kind: int
    dtype: str
    rank: int
    elements: int
    before: int
    costly: bool
    layout: str = "not a change of an image's layout"
