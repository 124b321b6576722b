"""Vertical fusion: groups grow from their anchors, one rule a step.

1. Every anchor and every reduction takes the element-wise operators behind it, as far as nobody
   else reads what lies between. Where a value is read several times (``x * sigmoid(x)``), all
   readers up to the operator in which they meet join together, or none.
2. Element-wise and injective operators that are left merge among themselves in the same way.
3. A group without an anchor joins the reduction or product that alone reads it, when rules say
   that the template computes it while reading.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tvmfuse.fusion.kernels import (
    ANCHOR,
    BROADCAST,
    INJECTIVE,
    OPAQUE,
    PRODUCTS,
    REDUCTION,
    KernelGraph,
)
from tvmfuse.fusion.rules.vertical import EPILOGUE, PROLOGUE, VerticalRule
from tvmfuse.verdict import YES, Verdict, no

# Templates inline a group into one expression, in which a value that is read twice stands twice:
# chains with diamonds grow exponentially and stop compiling.
MAX_EXPRESSION = 256
# What stands for more than one operator in an expression: TVM's analysis of tanh's lowering
# (`tvmfuse.schedules.cpu.intrinsics`) takes 18 times as long for each tanh around another.
_WEIGHT = {"tanh": 4, "gelu_tanh": 4}
MAX_REGION = 64  # operators looked at between a value and the point where its readers meet

# Operators that cost many times an addition: not computed again for every element of a broadcast.
_EXPENSIVE = frozenset(
    ("exp", "erf", "tanh", "sigmoid", "gelu", "gelu_tanh", "silu", "mish", "log", "power", "sin",
     "cos", "softplus", "elu", "selu", "power_const", "divide", "sqrt", "rsqrt")
)  # fmt: skip


@dataclass
class _Group:
    """A group while it grows; ``members`` in the order of ``main``."""

    anchor: str  # kind for the rules
    members: list[str]
    rules: list[str]


@dataclass(frozen=True)
class Stopped:
    """Why a group did not grow any further."""

    member: str
    rule: str
    verdict: Verdict


class Grower:
    """Grow the groups of one lowered module.

    Parameters
    ----------
    graph
        Its kernels.
    rules
        In order of priority.
    """

    def __init__(self, graph: KernelGraph, rules: Iterable[VerticalRule]) -> None:
        self.graph = graph
        self.stopped: list[Stopped] = []
        self.fired: Counter[str] = Counter()
        self._rules = {(r.anchor, r.op, r.side): r for r in reversed(list(rules))}
        self._owner: dict[str, _Group] = {}
        self._size: dict[str, int] = {}
        # Operators at which every group ends by nature: no fusion was considered there.
        self._borders = {
            n for n in graph.nodes if n not in graph.kernels or self._kind(n) > INJECTIVE
        }

    def _kind(self, name: str) -> int:
        return self.graph.kernels[name].kind

    def grow(self) -> list[_Group]:
        """All groups, in the order of their last members."""
        kernels = self.graph.kernels.values()
        for kernel in kernels:
            if kernel.kind in (REDUCTION, ANCHOR):
                self._start(kernel.name, self.graph.anchor_kind(kernel.name))
        for kernel in kernels:
            if kernel.name not in self._owner and kernel.kind <= INJECTIVE:
                self._start(kernel.name, "elementwise")
        for kernel in kernels:
            if kernel.name not in self._owner:
                self._own(_Group("opaque", [kernel.name], []), kernel.name)
        self._join_readers()
        groups = {id(g): g for g in self._owner.values()}.values()
        position = self.graph.position
        return sorted(groups, key=lambda g: position[g.members[-1]])

    def _own(self, group: _Group, name: str) -> None:
        self._owner[name] = group
        self._size[name] = self._expression(name)

    def _expression(self, name: str) -> int:
        """Operators in the expression of ``name`` when its group is inlined into it."""
        group = self._owner.get(name)
        node = self.graph.nodes[name]
        step = self.graph.kernels[name].step if name in self.graph.kernels else ""
        return 1 + _WEIGHT.get(step, 1) * sum(
            self._size[read]
            for read in self.graph.reads(node)
            if group is not None and self._owner.get(read) is group
        )

    def _start(self, name: str, anchor: str) -> None:
        group = _Group(anchor, [name], [])
        self._own(group, name)
        while self._step(group):
            pass

    def _step(self, group: _Group) -> bool:
        """Grow by one region; False, with the reason kept, when that is not possible."""
        region, verdict = self._region(group)
        rules: list[VerticalRule] = []
        if verdict:
            rules, verdict = self._rules_for(group, region)
        if verdict:
            verdict = self._try_own(group, region)
        if not verdict:
            if verdict.culprit not in self._borders and verdict.culprit not in self._owner:
                label = self._label(group, verdict.culprit)
                self.stopped.append(Stopped(group.members[-1], label, verdict))
            return False
        group.members += region
        self._count(group, rules)
        return True

    def _try_own(self, group: _Group, region: list[str]) -> Verdict:
        """Take the region into the group unless the group's expression would grow too large."""
        for member in region:
            self._own(group, member)
        size = self._size[region[-1]]
        if size <= MAX_EXPRESSION:
            return YES
        for member in region:
            del self._owner[member], self._size[member]
        why = f"its expression would have {size} operators, {MAX_EXPRESSION} at most"
        return no(why, region[-1])

    def _count(self, group: _Group, rules: Iterable[VerticalRule]) -> None:
        for rule in rules:
            group.rules.append(rule.name)
            self.fired[rule.name] += 1

    def _label(self, group: _Group, member: str) -> str:
        kernel = self.graph.kernels.get(member)
        return f"{kernel.op if kernel else member}({group.anchor})"

    def _rules_for(self, group: _Group, region: list[str]) -> tuple[list[VerticalRule], Verdict]:
        found = []
        for member in region:
            step = self.graph.kernels[member].step
            rule = self._rule(group.anchor, step, EPILOGUE)
            if rule is None:
                return [], no(f"no rule lets {step} join {group.anchor}", member)
            found.append(rule)
        return found, YES

    def _rule(self, anchor: str, op: str, side: str) -> VerticalRule | None:
        return self._rules.get((anchor, op, side)) or self._rules.get((anchor, "*", side))

    def _region(self, group: _Group) -> tuple[list[str], Verdict]:
        """The readers of the group's value up to where they meet, and whether they may join."""
        graph, out = self.graph, group.members[-1]
        if out in graph.outputs:
            return [], no("the model returns it", out)
        users = graph.users.get(out, ())
        heap = [(graph.position[u], u) for u in users]
        heapq.heapify(heap)
        pending, region = set(users), list[str]()
        while heap and len(region) < MAX_REGION:
            _, name = heapq.heappop(heap)
            verdict = self._may_join(group, name)
            region.append(name)
            if not verdict:
                return region, verdict
            pending.discard(name)
            if not pending:
                return region, YES
            if name in graph.outputs:
                return region, no("the model returns a value that lies between", name)
            for user in graph.users.get(name, ()):
                if user not in pending:
                    pending.add(user)
                    heapq.heappush(heap, (graph.position[user], user))
        if not region:
            return [], no("nobody reads it", out)
        return region, no(f"its readers do not meet within {MAX_REGION} operators", out)

    def _may_join(self, group: _Group, name: str) -> Verdict:
        graph = self.graph
        kernel, node = graph.kernels.get(name), graph.nodes[name]
        if kernel is None:
            return no(f"{node.op or 'a tuple'} is no kernel", name)
        if name in self._owner:
            return no(f"{kernel.op} belongs to another group", name)
        if kernel.kind in (REDUCTION, ANCHOR):
            return no(f"{kernel.op} is an anchor itself", name)
        allowed = INJECTIVE if group.anchor == "elementwise" else BROADCAST
        if kernel.kind > allowed:
            what = "opaque" if kernel.kind == OPAQUE else "not element-wise"
            return no(f"{kernel.op} is {what}", name)
        before = graph.kernels[group.members[-1]].elements
        if kernel.elements > before and self._costly(group):
            return no(
                f"{kernel.op} would compute {before} values for each of {kernel.elements}", name
            )
        return YES

    def _costly(self, group: _Group) -> bool:
        """Whether computing the group again for a broadcast costs more than a few additions."""
        return group.anchor != "elementwise" or any(
            self.graph.kernels[m].step in _EXPENSIVE for m in group.members
        )

    def _join_readers(self) -> None:
        """Let groups without an anchor join the product or row reduction that alone reads them."""
        products = [k.name for k in self.graph.kernels.values() if k.op in PRODUCTS]
        for name in (*products, *self.graph.row_reductions):
            reader = self._owner[name]
            reads = list(dict.fromkeys(self.graph.reads(self.graph.nodes[name])))
            for read in reads[:1] if name in products else reads:
                group = self._owner.get(read)
                if group is not None and group.anchor == "elementwise":
                    self._join(group, reader, INJECTIVE if name in products else BROADCAST)

    def _join(self, group: _Group, reader: _Group, allowed: int) -> None:
        out = group.members[-1]
        users = self.graph.users.get(out, ())
        if out in self.graph.outputs or any(self._owner.get(u) is not reader for u in users):
            return  # what is read elsewhere has to be stored anyway
        steps = [self.graph.kernels[m].step for m in group.members]
        rules = [self._rule(reader.anchor, step, PROLOGUE) for step in steps]
        found = [rule for rule in rules if rule is not None]
        if len(found) < len(steps) or self.graph.kernels[out].kind > allowed:
            missing = next((s for s, r in zip(steps, rules, strict=True) if r is None), steps[-1])
            why = no(f"{missing} is not computed while {reader.anchor} reads", out)
            self.stopped.append(Stopped(out, f"{reader.anchor}({missing}(x))", why))
            return
        for member in group.members:
            self._owner[member] = reader
        position = self.graph.position
        reader.members = sorted(group.members + reader.members, key=lambda m: position[m])
        self._count(reader, found)
