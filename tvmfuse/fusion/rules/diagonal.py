"""Diagonal rules: results written where they are wanted, instead of being copied there.

A concatenation disappears when each of its parts is made by a kernel that nobody else reads: the
kernels write side by side into one buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import relax

from tvmfuse.fusion.group import Group, InPlace, Refusal
from tvmfuse.fusion.rules.overwrite import Overwrite
from tvmfuse.graph import shape_of
from tvmfuse.verdict import YES, Verdict, no

if TYPE_CHECKING:  # it needs this package's words for anchors
    from tvmfuse.fusion.kernels import KernelGraph
    from tvmfuse.fusion.plan import Plan

CONCAT_IN_PLACE = "concat(f(x), g(y), …) without a copy"

_CONCAT = "concat"
# Their kernels are written with strides of their own instead of being scheduled.
_WRITTEN = frozenset(("attention", "matmul"))


@dataclass(frozen=True)
class _Found:
    """All concatenations so far by name, and whose kernels have which operators."""

    graph: KernelGraph
    groups: Mapping[str, Group]
    taken: dict[str, InPlace]


class ConcatInPlace:
    """Rule: the parts of a concatenation are written into it by their own kernels."""

    name = CONCAT_IN_PLACE
    category = "diagonal"
    wanted = "concatenation"

    @staticmethod
    def fired(plan: Plan) -> int:
        """How often it did in a plan."""
        return len(plan.in_place)

    def find(
        self, graph: KernelGraph, groups: Iterable[Group]
    ) -> tuple[tuple[InPlace, ...], tuple[Refusal, ...]]:
        """Concatenations that need no kernel, and the others with the reason.

        A concatenation that is a part of another along the same axis is taken apart into it.
        """
        found = _Found(graph, {g.members[-1]: g for g in groups}, {})
        refused = []
        for name, group in found.groups.items():
            if _CONCAT not in group.ops:
                continue
            verdict = _check(found, name, group)
            if not verdict:
                refused.append(Refusal(CONCAT_IN_PLACE, verdict.reason, verdict.culprit))
                continue
            parts: list[str] = []
            axis = _axis(graph, name)
            assert axis is not None  # the check has seen it
            for part in graph.nodes[name].operands:
                inner = found.taken.pop(str(part.name), None)
                parts += (str(part.name),) if inner is None else inner.parts
            found.taken[name] = InPlace(name, tuple(parts), axis)
        return tuple(found.taken.values()), tuple(refused)


def _check(found: _Found, name: str, group: Group) -> Verdict:
    if len(group.ops) > 1:
        return no("its kernel computes more than the concatenation", name)
    node, axis = found.graph.nodes[name], _axis(found.graph, name)
    if axis is None or len(node.operands) < 2:
        return no("it does not put at least two tensors beside each other", name)
    fixed = next((o for o in node.operands if not isinstance(o, relax.Var)), None)
    if fixed is not None:
        return no("a part is an input, a constant or a view: no kernel writes it", name)
    if len({str(o.name) for o in node.operands}) < len(node.operands):
        return no("it holds one tensor twice", name)
    for operand in node.operands:
        verdict = _check_part(found, str(operand.name), name, axis)
        if not verdict:
            return verdict
    return YES


def _check_part(found: _Found, part: str, concat: str, axis: int) -> Verdict:
    group = found.groups.get(part)
    if group is None:
        return no("a part is an input, a constant or a view: no kernel writes it", part)
    if part in found.graph.outputs or found.graph.users.get(part, ()) != (concat,):
        return no("a part is read elsewhere as well", part)
    if _CONCAT in group.ops:
        inner = found.taken.get(part)
        return YES if inner is not None and inner.axis == axis else no("a part is copied", part)
    if _WRITTEN & set(group.ops):
        return no("the kernel of a part is written with strides of its own", part)
    return YES


def _axis(graph: KernelGraph, name: str) -> int | None:
    """The axis along which the operands stand beside each other."""
    node = graph.nodes[name]
    out = node.shape
    shapes = [shape_of(operand) for operand in node.operands]
    if out is None or any(s is None or len(s) != len(out) for s in shapes):
        return None
    for axis, extent in enumerate(out):
        rest = {s[:axis] + s[axis + 1 :] for s in shapes if s is not None}
        total = sum(s[axis] for s in shapes if s is not None)
        if rest == {out[:axis] + out[axis + 1 :]} and total == extent:
            return axis
    return None


DiagonalRule = ConcatInPlace | Overwrite
DIAGONAL: tuple[DiagonalRule, ...] = (ConcatInPlace(), Overwrite())
