"""Groups and plans: which operators become one kernel, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # which itself rests on the kernels, and these on the rules
    from tvmfuse.fusion.feasibility import MatrixRow

CATEGORIES = ("vertical", "horizontal", "diagonal", "compound")


@dataclass(frozen=True)
class Group:
    """The operators that become one kernel.

    Parameters
    ----------
    members
        Names of the bindings in ``main``, in order; the last one is the group's output.
    ops
        What each member computes, e.g. ``("conv2d", "add", "relu")``.
    category
        One of :data:`CATEGORIES`; empty for a group of one.
    rule
        The equation of the whole group; empty for a group of one.
    anchor
        What its anchor is called in the rules.
    steps
        Names of the rules by which its members joined, in the order in which they did.
    """

    members: tuple[str, ...]
    ops: tuple[str, ...]
    category: str = ""
    rule: str = ""
    anchor: str = ""
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """A fusion that was considered and not taken.

    Parameters
    ----------
    rule
        Its equation.
    reason
        Why not.
    culprit
        Name of the binding that decided.
    """

    rule: str
    reason: str
    culprit: str = ""


@dataclass(frozen=True)
class InPlace:
    """A concatenation whose parts are written into it by their own kernels.

    Parameters
    ----------
    name
        The group that would have copied; it has no kernel.
    parts
        Groups whose results stand beside each other, in order.
    axis
        Along which they do.
    """

    name: str
    parts: tuple[str, ...]
    axis: int


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
    matrix
        The feasibility of each group of several operators.
    """

    groups: tuple[Group, ...]
    refused: tuple[Refusal, ...] = field(default=())
    in_place: tuple[InPlace, ...] = ()
    matrix: tuple[MatrixRow, ...] = field(default=())

    def counts(self) -> dict[str, int]:
        """Groups of each category; of diagonal ones, the concatenations that are not copied."""
        found = Counter(g.category for g in self.groups if g.category)
        found["diagonal"] += len(self.in_place)
        return {category: found.get(category, 0) for category in CATEGORIES}
