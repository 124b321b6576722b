"""What a plan is made of: groups, what is written in place, and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvmfuse.fusion.feasibility import Work

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
    work
        What it computes and moves.
    """

    members: tuple[str, ...]
    ops: tuple[str, ...]
    category: str = ""
    rule: str = ""
    anchor: str = ""
    steps: tuple[str, ...] = ()
    work: Work | None = field(default=None, compare=False, repr=False)


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
        Groups whose results stand beside each other, in order; results of another shape are read
        through a view. One of them may be a concatenation along another axis.
    axis
        Along which they do.
    flattened
        Concatenations along the same axis that were taken apart into this one; no kernels either.
    base
        A result of the same shape in whose memory the parts lie; empty where there is none.
    staying
        Slices of ``base``, and where each begins along the axis: parts at the place at which they
        are wanted, and others that are read before a part is written over them. No kernel makes
        them.
    """

    name: str
    parts: tuple[str, ...]
    axis: int
    flattened: tuple[str, ...] = ()
    base: str = ""
    staying: tuple[tuple[str, int], ...] = ()

    @property
    def inside(self) -> tuple[str, ...]:
        """Everything that lies in its memory."""
        over = (self.base,) if self.base else ()
        return (*over, *self.parts, *(name for name, _ in self.staying if name not in self.parts))

    @property
    def unwritten(self) -> tuple[str, ...]:
        """All groups that have no kernel."""
        return (self.name, *self.flattened, *(name for name, _ in self.staying))


def home_of(homes: Mapping[str, str], name: str) -> str:
    """The result in which one lies at last; ``homes`` names the next one of each that does."""
    while name in homes:
        name = homes[name]
    return name


@dataclass(frozen=True)
class Overwritten:
    """A group whose result takes the place of an operand.

    Parameters
    ----------
    name
        The group.
    operand
        The result of another group, which is not read any more.
    """

    name: str
    operand: str


@dataclass(frozen=True)
class Beside:
    """Parts of one concatenation that one kernel writes, each by its own expression.

    Parameters
    ----------
    parts
        Groups in the order of ``main``.
    """

    parts: tuple[str, ...]
