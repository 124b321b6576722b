"""What a rule is: its equation, where it matches, whether it may, and what it makes.

Rules of merging (horizontal, diagonal, compound) rewrite the graph before it is lowered; rules of
growing (vertical) extend a group of kernels by one operator afterwards and rewrite nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

from tvm import relax

from tvmfuse.fusion.pattern import Match, Mismatch
from tvmfuse.graph import Graph
from tvmfuse.hardware import Hardware
from tvmfuse.verdict import Verdict


class Rule(Protocol):
    """A rule that merges operators of the graph into fewer.

    Attributes
    ----------
    name
        Its equation; it travels to the task, the log and the report.
    category
        ``"horizontal"``, ``"diagonal"`` or ``"compound"``.
    root
        Operators (without namespace) at which :meth:`match` is worth trying.
    """

    name: str
    category: str
    root: tuple[str, ...]

    def match(self, graph: Graph, name: str) -> Match | Mismatch:
        """Match with the node ``name`` as root: facts only, no judgement."""
        ...

    def check(self, graph: Graph, match: Match, hardware: Hardware) -> Verdict:
        """Judge a match: types, layouts, whether it pays on this hardware."""
        ...

    def rewrite(self, graph: Graph, match: Match, builder: Emitter) -> dict[str, Any]:
        """Emit the replacement; returns for each of ``match.outputs`` its new variable.

        Expressions bound in the match may be used as they are: the emitter replaces variables
        that were rewritten before.
        """
        ...


class Emitter(Protocol):
    """What a rewrite writes to."""

    def emit(self, value: Any) -> relax.Var:
        """Bind an expression to a new variable."""
        ...


def leaking(graph: Graph, match: Match) -> str | None:
    """A member that is read outside the match without being one of its outputs; None if none."""
    inside = set(match.members)
    for name in match.members:
        if name in match.outputs:
            continue
        if name in graph.outputs or not inside.issuperset(graph.users.get(name, ())):
            return name
    return None


def late_operand(graph: Graph, match: Match) -> str | None:
    """An operand from outside that is made after the first output; None if all are ready.

    Such a match has a path out and back in, or would have to move operators: it is not convex.
    """
    first = min(graph.position[name] for name in match.outputs)
    inside = set(match.members)
    for name in match.members:
        for operand in graph.nodes[name].operands:
            if graph.order_of(operand) >= first and str(operand.name) not in inside:
                return str(operand.name)
    return None
