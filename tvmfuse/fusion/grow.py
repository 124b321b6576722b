"""Vertical fusion: groups grow from their anchors, one rule a step.

1. Every anchor and every reduction takes the element-wise operators behind it, as far as nobody
   else reads what lies between. Where a value is read several times (``x * sigmoid(x)``), all
   readers up to the operator in which they meet join together, or none.
2. Element-wise and injective operators that are left merge among themselves in the same way.
3. A group without an anchor joins the reduction or product that alone reads it, when rules say
   that the template computes it while reading.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tvmfuse.fusion.feasibility import REFUSED, Work, assess, joined, work_of
from tvmfuse.fusion.kernels import PRODUCTS, KernelGraph
from tvmfuse.fusion.norms import behind_norm, norm_behind_product
from tvmfuse.fusion.rules.vertical import EPILOGUE, PROLOGUE, VerticalRule
from tvmfuse.fusion.rules.vertical_table import PAIRS
from tvmfuse.fusion.step import ANCHOR, INJECTIVE, REDUCTION, Step
from tvmfuse.hardware import Hardware
from tvmfuse.hardware.limits import Limits
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
    work: Work | None = None
    rules: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.held.update(self.members)

    def take(self, region: list[str], work: Work, rules: Iterable[str]) -> None:
        """Grow by a region."""
        self.members += region
        self.held.update(region)
        self.work = work
        self.rules += rules


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
    limits
        Of the device: what the feasibility matrix refuses on it does not join.
    off
        Rules that are switched off: what one of them names joins by no other rule either.
    split
        Groups, as their members, that measuring found slower than their parts, and what it found.
    hardware
        The target, whose templates say whether a norm pays behind a product; None keeps them apart.
    """

    def __init__(
        self,
        graph: KernelGraph,
        rules: Iterable[VerticalRule],
        limits: Limits,
        off: Iterable[VerticalRule] = (),
        split: Mapping[frozenset[str], str] | None = None,
        hardware: Hardware | None = None,
    ) -> None:
        self.graph, self.limits, self._hardware = graph, limits, hardware
        self._split = split or {}
        self.stopped: list[Stopped] = []
        self.fired: Counter[str] = Counter()
        self._rules = {r.key: r for r in reversed(list(rules))}
        self._off = {r.key for r in off} - self._rules.keys()
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
            if kernel.kind in (REDUCTION, ANCHOR) and kernel.name not in self._owner:
                self._start(kernel.name, self.graph.anchor_kind(kernel.name))
        for kernel in kernels:
            if kernel.name not in self._owner and kernel.kind <= INJECTIVE:
                self._start(kernel.name, "elementwise")
        for kernel in kernels:
            if kernel.name not in self._owner:
                work = work_of(self.graph, [kernel.name], self.limits)
                self._own(_Group("opaque", [kernel.name], work), kernel.name)
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
        group = _Group(anchor, [name], work_of(self.graph, [name], self.limits))
        self._own(group, name)
        while self._step(group):
            pass

    def _step(self, group: _Group) -> bool:
        """Grow by one region; False, with the reason kept, when that is not possible."""
        region, rules, verdict = self._region(group)
        if verdict:
            verdict = self._try_own(group, region)
        if verdict:
            assert group.work is not None
            work = joined(self.graph, group.work, group.held, region, self.limits)
            verdict = self._pays(work, [*group.members, *region], region[-1])
            if not verdict:
                self._disown(region)
                self._stop(group, verdict)
                return False
        if not verdict:
            if verdict.culprit not in self._borders and verdict.culprit not in self._owner:
                self._stop(group, verdict)
            return False
        group.take(region, work, (rule.name for rule in rules))
        self.fired.update(rule.name for rule in rules)
        return True

    def _stop(self, group: _Group, verdict: Verdict) -> None:
        label = self._label(group, verdict.culprit)
        self.stopped.append(Stopped(group.members[-1], label, verdict))

    def _pays(self, work: Work, members: list[str], culprit: str) -> Verdict:
        """What was measured decides, and where nothing was, the estimate."""
        measured = self._split.get(frozenset(members))
        if measured is not None:
            return no(measured, culprit)
        found = assess(work, self.limits)
        return no(found.reason, culprit) if found.verdict == REFUSED else YES

    def _try_own(self, group: _Group, region: list[str]) -> Verdict:
        """Take the region into the group unless the group's expression would grow too large."""
        for member in region:
            self._own(group, member)
        size = self._size[region[-1]]
        if size <= MAX_EXPRESSION:
            return YES
        self._disown(region)
        why = f"its expression would have {size} operators, {MAX_EXPRESSION} at most"
        return no(why, region[-1])

    def _disown(self, region: list[str]) -> None:
        for member in region:
            del self._owner[member], self._size[member]

    def _label(self, group: _Group, member: str) -> str:
        """The equation of the rule that would have joined ``member``."""
        kernel = self.graph.kernels.get(member)
        return VerticalRule(group.anchor, kernel.step if kernel else member).name

    def _rule(self, anchor: str, op: str, side: str) -> tuple[VerticalRule | None, Verdict]:
        """The rule for a step: the one that names it, else the anchor's rule for all others."""
        rule = self._rules.get((anchor, op, side))
        if rule is None and (anchor, op, side) in self._off:
            return None, no("the rule is switched off")
        rule = rule or self._rules.get((anchor, "*", side))
        if rule is None:
            if side == PROLOGUE:
                return None, no(f"{op} is not computed while {anchor} reads")
            return None, no(f"no rule lets {op} join {anchor}")
        return rule, YES

    def _region(self, group: _Group) -> tuple[list[str], list[VerticalRule], Verdict]:
        """The readers of the group's value up to where they meet, and whether they may join."""
        graph, out = self.graph, group.members[-1]
        if out in graph.outputs:
            return [], [], no("the model returns it", out)
        users = graph.users.get(out, ())
        heap = [(graph.position[u], u) for u in users]
        heapq.heapify(heap)
        pending, region, rules = set(users), list[str](), list[VerticalRule]()
        while heap and len(region) < MAX_REGION:
            _, name = heapq.heappop(heap)
            rule, verdict = self._may_join(group, name)
            region.append(name)
            if rule is None or not verdict:
                return region, rules, verdict
            rules.append(rule)
            pending.discard(name)
            if not pending:
                return region, rules, YES
            if name in graph.outputs:
                return region, rules, no("the model returns a value that lies between", name)
            for user in graph.users.get(name, ()):
                if user not in pending:
                    pending.add(user)
                    heapq.heappush(heap, (graph.position[user], user))
        if not region:
            return [], [], no("nobody reads it", out)
        return region, rules, no(f"its readers do not meet within {MAX_REGION} operators", out)

    def _may_join(self, group: _Group, name: str) -> tuple[VerticalRule | None, Verdict]:
        graph = self.graph
        kernel, node = graph.kernels.get(name), graph.nodes[name]
        if kernel is None:
            return None, no(f"{node.op or 'a tuple'} is no kernel", name)
        if name in self._owner:
            return None, no(f"{kernel.op} belongs to another group", name)
        rule, verdict = self._rule(group.anchor, kernel.step, EPILOGUE)
        pair = (group.anchor, kernel.step) in PAIRS
        if pair:
            self._borders.discard(name)  # a fusion was considered here
        elif kernel.kind in (REDUCTION, ANCHOR) and not (rule is not None and rule.anchors):
            return None, no(f"{kernel.op} is an anchor itself", name)
        if rule is None:
            return None, no(verdict.reason, name)
        verdict = rule.check(self._facts(name, group))
        if verdict and pair:
            verdict = self._norm(group, name)
        elif verdict and any(group.anchor == anchor for anchor, _ in PAIRS):
            verdict = behind_norm(graph, group.members, name)
        return rule, verdict

    def _norm(self, group: _Group, name: str) -> Verdict:
        if self._hardware is None:
            return no("no target to judge it by", name)
        return norm_behind_product(self.graph, group.members, name, self._hardware)

    def _facts(self, name: str, group: _Group | None = None) -> Step:
        kernel, node = self.graph.kernels[name], self.graph.nodes[name]
        before = self.graph.kernels[group.members[-1]].elements if group else kernel.elements
        costly = group is not None and kernel.elements > before and self._costly(group)
        rank = -1 if node.shape is None else len(node.shape)
        facts = name, kernel.op, kernel.kind, node.dtype, rank, kernel.elements, before, costly
        if group is None or (group.anchor, kernel.op) != ("conv2d", "transpose"):
            return Step(*facts)
        return Step(*facts, layout=self.graph.layout_change(name, group.members[0]))

    def _costly(self, group: _Group) -> bool:
        """Whether computing the group again for a broadcast costs more than a few additions."""
        return group.anchor != "elementwise" or any(
            self.graph.kernels[m].step in _EXPENSIVE for m in group.members
        )

    def _join_readers(self) -> None:
        """Let groups without an anchor join the product or row reduction that alone reads them."""
        products = {k.name for k in self.graph.kernels.values() if k.op in PRODUCTS}
        for name in (*(n for n in self.graph.kernels if n in products), *self.graph.row_reductions):
            reader = self._owner[name]
            reads = list(dict.fromkeys(self.graph.reads(self.graph.nodes[name])))
            for read in reads[:1] if name in products else reads:
                group = self._owner.get(read)
                if group is not None and group.anchor == "elementwise":
                    self._join(group, reader)

    def _join(self, group: _Group, reader: _Group) -> None:
        out = group.members[-1]
        users = self.graph.users.get(out, ())
        if out in self.graph.outputs or any(self._owner.get(u) is not reader for u in users):
            return  # what is read elsewhere has to be stored anyway
        rules, verdict = list[VerticalRule](), YES
        for member in reversed(group.members):
            step = self.graph.kernels[member].step
            rule, verdict = self._rule(reader.anchor, step, PROLOGUE)
            if rule is not None:
                facts = self._facts(member)
                if rule.changes_layout:
                    layout = self.graph.layout_read(member, reader.members[0])
                    facts = dataclasses.replace(facts, layout=layout)
                verdict = rule.check(facts, inner=member != out)
            if rule is None or not verdict:
                label = VerticalRule(reader.anchor, step, PROLOGUE).name
                self.stopped.append(Stopped(out, label, no(verdict.reason, member)))
                return
            rules.append(rule)
        position = self.graph.position
        members = sorted(group.members + reader.members, key=lambda m: position[m])
        work = work_of(self.graph, members, self.limits)
        pays = self._pays(work, members, out)
        if not pays:
            self.stopped.append(Stopped(out, rules[0].name, pays))
            return
        for member in group.members:
            self._owner[member] = reader
        reader.members, reader.work = members, work
        reader.held.update(members)
        names = [rule.name for rule in rules]
        reader.rules += [*group.rules, *names]
        self.fired.update(names)
