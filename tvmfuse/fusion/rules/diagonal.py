"""Diagonal rules: results written where they are wanted, instead of being copied there.

A concatenation disappears when kernels make all of its parts: they write side by side into one
buffer. Whoever else reads a part reads it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import relax

from tvmfuse.fusion.group import Group, InPlace, Refusal, home_of
from tvmfuse.fusion.rules.base import CONCAT, NO_BASE, WRITTEN, Base, base_of
from tvmfuse.fusion.rules.overwrite import Overwrite
from tvmfuse.fusion.rules.together import Together
from tvmfuse.graph import shape_of
from tvmfuse.schedules.strides import split_axes
from tvmfuse.verdict import YES, Verdict, no

if TYPE_CHECKING:  # it needs this package's words for anchors
    from tvmfuse.fusion.kernels import KernelGraph
    from tvmfuse.fusion.plan import Plan

CONCAT_IN_PLACE = "concat(f(x), g(y), …) without a copy"


@dataclass(frozen=True)
class _Found:
    """All concatenations so far by name, and whose kernels have which operators."""

    graph: KernelGraph
    groups: Mapping[str, Group]
    owner: Mapping[str, str]  # of each operator, the group
    taken: dict[str, InPlace]

    def placed(self) -> set[str]:
        """Everything that lies in a concatenation already."""
        return {name for place in self.taken.values() for name in place.inside}

    def base(self, name: str, axis: int) -> Base:
        """What a concatenation can take the place of, unless that lies in another one."""
        found = base_of(self.graph, self.groups, self.owner, name, axis)
        return found if found[0] not in self.placed() else NO_BASE


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
        self, graph: KernelGraph, groups: Iterable[Group], _found: Iterable[object] = ()
    ) -> tuple[tuple[InPlace, ...], tuple[Refusal, ...]]:
        """Concatenations that need no kernel, and the others with the reason.

        A concatenation that is a part of another along the same axis is taken apart into it.
        """
        groups = tuple(groups)
        owner = {m: g.members[-1] for g in groups for m in g.members}
        found = _Found(graph, {g.members[-1]: g for g in groups}, owner, {})
        refused = []
        for name, group in found.groups.items():
            if CONCAT not in group.ops:
                continue
            axis = _axis(graph, name)
            verdict = _check_form(graph, name, group, axis)
            if verdict and axis is not None:
                base = found.base(name, axis)
                verdict = _check_parts(found, name, axis, base)
            if not verdict or axis is None:
                refused.append(Refusal(CONCAT_IN_PLACE, verdict.reason, verdict.culprit))
                continue
            parts: list[str] = []
            flattened: list[str] = []
            for operand in graph.nodes[name].operands:
                part = _behind(graph, operand)
                inner = found.taken.get(part)
                if inner is None or inner.axis != axis or part != str(operand.name):
                    parts.append(part)
                    continue
                parts += inner.parts
                flattened += [part, *inner.flattened]
                del found.taken[part]
            found.taken[name] = InPlace(name, tuple(parts), axis, tuple(flattened), *base)
        return tuple(found.taken.values()), tuple(refused)


def _check_form(graph: KernelGraph, name: str, group: Group, axis: int | None) -> Verdict:
    if len(group.ops) > 1:
        return no("its kernel computes more than the concatenation", name)
    node = graph.nodes[name]
    if axis is None or len(node.operands) < 2:
        return no("it does not put at least two tensors beside each other", name)
    fixed = next((o for o in node.operands if not isinstance(o, relax.Var)), None)
    if fixed is not None:
        return no("a part is an input, a constant or a view: no kernel writes it", name)
    if len({_behind(graph, o) for o in node.operands}) < len(node.operands):
        return no("it holds one tensor twice", name)
    return YES


def _check_parts(found: _Found, name: str, axis: int, base: Base) -> Verdict:
    staying = dict(base[1])
    for operand in found.graph.nodes[name].operands:
        if str(operand.name) in staying:
            continue
        verdict = _check_part(found, operand, name, axis)
        if not verdict:
            return verdict
    return _check_memory(found, name)


def _behind(graph: KernelGraph, operand: relax.Var) -> str:
    """The kernel's result of which a part is a view that merges axes; else the part itself."""
    node = graph.nodes.get(str(operand.name))
    if node is None or node.op != "reshape" or node.name in graph.kernels:
        return str(operand.name)
    (source,) = (o for o in node.operands if isinstance(o, relax.Var))
    own, seen = shape_of(source), node.shape
    if graph.sole_user(node.name) is None or own is None or seen is None:
        return str(operand.name)
    return str(source.name) if split_axes(seen, own) is not None else str(operand.name)


def _check_part(found: _Found, operand: relax.Var, concat: str, axis: int) -> Verdict:
    graph, part = found.graph, _behind(found.graph, operand)
    group = found.groups.get(part)
    if group is None:
        return no("a part is an input, a constant or a view: no kernel writes it", part)
    if part in graph.outputs:
        return no("a part is a result of the model", part)
    if part in found.placed():
        return no("a part lies in another concatenation", part)
    reader = concat if part == str(operand.name) else str(operand.name)
    others = [u for u in graph.users.get(part, ()) if u != reader]
    if CONCAT in group.ops:
        if part not in found.taken:
            return no("a part is copied", part)
        return YES if not others else no("a part is read elsewhere as well", part)
    if WRITTEN & set(group.ops):
        return no("the kernel of a part is written with strides of its own", part)
    for user in others:
        verdict = _check_reader(found, user)
        if not verdict:
            return verdict
    return YES


def _check_reader(found: _Found, user: str) -> Verdict:
    """Whether it can read a part where that lies in the concatenation."""
    group = found.groups.get(found.owner.get(user, ""))
    if group is None:
        return no("a part is read elsewhere as well, by no kernel", user)
    if WRITTEN & set(group.ops):
        return no("a part is read elsewhere as well, with strides of its own", user)
    return YES


def _check_memory(found: _Found, name: str) -> Verdict:
    """Parts that are read elsewhere make the concatenation live long: not beyond what there is."""
    graph = found.graph
    parts = [_behind(graph, o) for o in graph.nodes[name].operands]
    if all(len(graph.users.get(part, ())) == 1 for part in parts):
        return YES
    homes = {part: place.name for place in found.taken.values() for part in place.parts}
    before = peak_bytes(graph, found.owner, homes)
    after = peak_bytes(graph, found.owner, {**homes, **dict.fromkeys(parts, name)})
    if after > before:
        kib = (after - before) / 1024
        return no(f"a part is read elsewhere as well: memory grows by {kib:.0f} KiB", name)
    return YES


def peak_bytes(graph: KernelGraph, owner: Mapping[str, str], homes: Mapping[str, str]) -> int:
    """Most bytes of results of groups that are alive at once.

    Parameters
    ----------
    graph
        The kernels.
    owner
        The group of each operator.
    homes
        What lies in another result, and in which.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    base: dict[str, str] = {}  # of a view
    for place, node in enumerate(graph.nodes.values()):
        reads = [base.get(read, read) for read in graph.reads(node)]
        for read in reads:
            last[home_of(homes, read)] = place
        if node.name not in graph.kernels:
            base[node.name] = reads[0] if reads else node.name
        elif owner[node.name] == node.name:
            home = home_of(homes, node.name)
            first.setdefault(home, place)
            last[home] = place
    change = [0] * (len(graph.nodes) + 1)
    for name, place in first.items():
        change[place] += graph.nodes[name].bytes
        change[last[name] + 1] -= graph.nodes[name].bytes
    alive = most = 0
    for step in change:
        alive += step
        most = max(most, alive)
    return most


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


DiagonalRule = ConcatInPlace | Together | Overwrite
DIAGONAL: tuple[DiagonalRule, ...] = (ConcatInPlace(), Together(), Overwrite())
