"""Diagonal rule: element-wise parts of a concatenation are computed by one kernel.

The kernels of boxes, sizes and scores of a detection head each write a few columns of one tensor:
as one kernel, which computes each part by its own expression, they cost one call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tvmfuse.fusion.group import Beside, Group, InPlace, Refusal, home_of
from tvmfuse.verdict import YES, Verdict, no

if TYPE_CHECKING:  # it needs this package's words for anchors
    from tvmfuse.fusion.kernels import KernelGraph
    from tvmfuse.fusion.plan import Plan

TOGETHER = "concat(f(x), g(y), …) in one kernel"


class Together:
    """Rule: kernels one behind the other that write parts of one tensor become one."""

    name = TOGETHER
    category = "diagonal"
    wanted = "concatenation of element-wise parts"

    @staticmethod
    def fired(plan: Plan) -> int:
        """How often it did in a plan."""
        return len(plan.beside)

    def find(
        self, graph: KernelGraph, groups: Iterable[Group], found: Iterable[object] = ()
    ) -> tuple[tuple[Beside, ...], tuple[Refusal, ...]]:
        """Runs of parts that are made without another kernel in between."""
        places = [place for place in found if isinstance(place, InPlace)]
        inside = {part: place.name for place in places for part in place.parts}
        names = {name for place in places for name in place.unwritten}
        runs: list[list[Group]] = []
        refused, before = [], ""
        for group in (g for g in groups if g.members[-1] not in names):
            part = group.members[-1]
            root = home_of(inside, part) if part in inside else ""
            neighbours = bool(root) and root == before
            verdict = _check(graph, group, runs[-1] if neighbours else [])
            if neighbours and verdict:
                runs[-1].append(group)
            elif root:
                runs.append([group])
            if neighbours and not verdict:
                refused.append(Refusal(TOGETHER, verdict.reason, verdict.culprit))
            before = root
        several = (tuple(g.members[-1] for g in run) for run in runs if len(run) > 1)
        return tuple(Beside(parts) for parts in several), tuple(refused)


def _check(graph: KernelGraph, group: Group, run: list[Group]) -> Verdict:
    """Whether a group may follow a run in the same kernel."""
    for one in (group, *run):
        if one.anchor != "elementwise":
            return no(f"a part is made by {one.anchor}, not element by element", one.members[-1])
    made = {member for one in run for member in one.members}
    for member in group.members:
        if made.intersection(graph.reads(graph.nodes[member])):
            return no("a part is computed from the part in front of it", group.members[-1])
    return YES
