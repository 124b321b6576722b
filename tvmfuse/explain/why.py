"""Why a rule did not fire: the match that came furthest, and where it stopped."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tvmfuse.errors import UnknownNameError
from tvmfuse.fusion.kernels import KernelGraph
from tvmfuse.fusion.merging import Merges
from tvmfuse.fusion.plan import Plan
from tvmfuse.fusion.rules import RULES
from tvmfuse.fusion.rules.diagonal import DIAGONAL
from tvmfuse.fusion.rules.selection import RuleSet
from tvmfuse.fusion.rules.vertical import PROLOGUE, VerticalRule

_SHOWN = 5


def find_rule(name: str, rules: RuleSet) -> Any:
    """The rule of this name, switched on or off; raises UnknownNameError."""
    library = (rule for category in RULES.values() for rule in category)
    everything = [*rules.merging, *rules.vertical, *rules.off, *library]
    for rule in everything:
        if rule.name == name:
            return rule
    raise UnknownNameError("rule", name, {r.name for r in everything}, hint="(see docs/rules.md)")


def why(
    name: str, rules: RuleSet, merges: Merges, plan: Plan, graph: KernelGraph
) -> dict[str, Any]:
    """How often a rule fired, what refused it, and the candidate that came furthest.

    Returns
    -------
    dict
        ``rule, category, fired, refused`` (reasons with how often and where) and ``stopped``:
        one sentence, empty when it fired or was refused.
    """
    rule = find_rule(name, rules)
    refused: Counter[str] = Counter()
    where: dict[str, list[str]] = {}
    for refusal in (*merges.refused, *plan.refused):
        if refusal.rule == name:
            refused[refusal.reason] += 1
            where.setdefault(refusal.reason, []).append(refusal.culprit)
    if isinstance(rule, VerticalRule):
        fired = sum(group.steps.count(name) for group in plan.groups)
        stopped = _stopped(rule, rules, plan, graph)
    elif rule in DIAGONAL:
        fired = rule.fired(plan)
        off = rule not in rules.diagonal
        stopped = "the rule is switched off" if off else f"the model has no {rule.wanted}"
    else:
        fired = sum(merge.rule.name == name for merge in merges.chosen)
        near = merges.nearest.get(name)
        if name not in rules.names:
            stopped = "the rule is switched off"
        elif near is None:
            roots = " or ".join(rule.root)
            stopped = f"the model has no {roots}, at which it starts"
        else:
            stopped = f"{near.progress} operators matched, then: {near.reason}"
            stopped += f" (at {near.culprit})" if near.culprit else ""
    return {
        "rule": name,
        "category": rule.category,
        "fired": fired,
        "refused": [
            {"reason": reason, "count": count, "at": where[reason][:_SHOWN]}
            for reason, count in refused.most_common()
        ],
        "stopped": "" if fired or refused else stopped,
    }


def _stopped(rule: VerticalRule, rules: RuleSet, plan: Plan, graph: KernelGraph) -> str:
    if rule in rules.off:
        return "the rule is switched off"
    groups = [g for g in plan.groups if g.anchor == rule.anchor]
    if not groups:
        found = sorted({g.anchor for g in plan.groups if g.anchor})
        return f"the model has no {rule.anchor}; its anchors are {', '.join(found)}"
    beside: Counter[str] = Counter()
    for group in groups:
        names = (
            graph.reads(graph.nodes[_first_of(group.members, graph)])
            if rule.side == PROLOGUE
            else graph.users.get(group.members[-1], ())
        )
        steps = {graph.kernels[n].step for n in names if n in graph.kernels}
        beside.update(steps or {"an input, a view or the model's output"})
    place = "in front of" if rule.side == PROLOGUE else "behind"
    seen = ", ".join(f"{op} ({count})" for op, count in beside.most_common(_SHOWN))
    return f"{len(groups)} groups of {rule.anchor}, but {place} them come {seen}, no {rule.op}"


def _first_of(members: tuple[str, ...], graph: KernelGraph) -> str:
    """The member that a prologue would feed: the one of the most involved kind."""
    return max(members, key=lambda name: graph.kernels[name].kind)
