"""Diagonal rule: a kernel writes its result where an operand of its epilogue lay.

The shortcut of a residual block is read for the last time, element by element, by the kernel that
adds it: the sum needs no memory of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tvm import relax

from tvmfuse.fusion.group import Group, Overwritten, Refusal
from tvmfuse.fusion.step import BROADCAST, INJECTIVE
from tvmfuse.graph import dtype_of, shape_of
from tvmfuse.verdict import YES, Verdict, no

if TYPE_CHECKING:  # it needs this package's words for anchors
    from tvmfuse.fusion.kernels import KernelGraph
    from tvmfuse.fusion.plan import Plan

OVERWRITE = "f(x, …) written over x"


class Overwrite:
    """Rule: the result takes the place of an operand that nobody reads later.

    Whether the schedule reads and writes the same element in one place is seen behind scheduling
    (`tvmfuse.passes.overwrite`).
    """

    name = OVERWRITE
    category = "diagonal"
    wanted = "element-wise operator with an operand as large as its result"

    @staticmethod
    def fired(plan: Plan) -> int:
        """How often it did in a plan."""
        return len(plan.overwritten)

    def find(
        self, graph: KernelGraph, groups: Iterable[Group], _found: Iterable[object] = ()
    ) -> tuple[tuple[Overwritten, ...], tuple[Refusal, ...]]:
        """Groups that can write over an operand, and the others with the reason."""
        groups = tuple(groups)
        order = {m: number for number, g in enumerate(groups) for m in g.members}
        results = {g.members[-1] for g in groups}
        found, refused = [], []
        for number, group in enumerate(groups):
            for operand in _alike(graph, group):
                verdict = _check(graph, group, operand, number, order, results)
                if verdict:
                    found.append(Overwritten(group.members[-1], operand))
                    break
                refused.append(Refusal(OVERWRITE, verdict.reason, verdict.culprit))
        return tuple(found), tuple(refused)


def _alike(graph: KernelGraph, group: Group) -> list[str]:
    """Operands of element-wise members that are as large as the result, in their order."""
    result = graph.nodes[group.members[-1]]
    found = [
        str(operand.name)
        for member in group.members
        if graph.kernels[member].kind <= BROADCAST
        for operand in graph.nodes[member].operands
        if isinstance(operand, relax.Var)
        and str(operand.name) not in group.members
        and shape_of(operand) == result.shape
        and dtype_of(operand) == result.dtype
    ]
    return list(dict.fromkeys(found))


def _check(
    graph: KernelGraph,
    group: Group,
    operand: str,
    number: int,
    order: dict[str, int],
    results: set[str],
) -> Verdict:
    if operand not in results:
        return no("an input, a constant or a view is not written over", operand)
    if operand in graph.outputs:
        return no("it is a result of the model", operand)
    for user in graph.users.get(operand, ()):
        if user in group.members:
            if graph.kernels[user].kind > BROADCAST:
                return no(f"{graph.kernels[user].op} reads it elsewhere than it writes", user)
            for later in group.members[group.members.index(user) + 1 :]:
                if graph.kernels[later].kind > INJECTIVE:  # it needs whole rows before any result
                    return no(f"{graph.kernels[later].op} stands between it and the result", later)
        elif user not in order or order[user] >= number:
            return no("it is read later as well", user)
    return YES
