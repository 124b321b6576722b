"""Plans: which operators become one kernel, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tvmfuse.fusion.feasibility import MatrixRow
from tvmfuse.fusion.group import CATEGORIES, Beside, Group, InPlace, Overwritten, Refusal


@dataclass(frozen=True)
class Plan:
    """The ordered groups of one workload for one target, with every refusal kept.

    Parameters
    ----------
    groups
        In the order of their last members.
    refused
        Fusions that were considered and not taken.
    in_place
        Concatenations that need no kernel.
    beside
        Parts of concatenations that share a kernel.
    overwritten
        Groups that write over an operand, where their schedules allow it.
    matrix
        The feasibility of each group of several operators.
    """

    groups: tuple[Group, ...]
    refused: tuple[Refusal, ...] = field(default=())
    in_place: tuple[InPlace, ...] = ()
    overwritten: tuple[Overwritten, ...] = ()
    matrix: tuple[MatrixRow, ...] = field(default=())
    beside: tuple[Beside, ...] = ()

    @property
    def unwritten(self) -> frozenset[str]:
        """Groups without a kernel, by their last members."""
        return frozenset(name for place in self.in_place for name in place.unwritten)

    def counts(self) -> dict[str, int]:
        """Groups of each category; of diagonal ones, what is written where it is wanted."""
        found = Counter(g.category for g in self.groups if g.category)
        found["diagonal"] += len(self.in_place) + len(self.beside) + len(self.overwritten)
        return {category: found.get(category, 0) for category in CATEGORIES}
