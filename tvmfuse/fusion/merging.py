"""Find where the merging rules (compound, horizontal, diagonal) apply; changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tvmfuse.fusion.group import Refusal
from tvmfuse.fusion.pattern import Match, Mismatch
from tvmfuse.fusion.rule import Rule, late_operand, leaking
from tvmfuse.graph import Graph
from tvmfuse.hardware import Hardware
from tvmfuse.verdict import Verdict, no


@dataclass(frozen=True)
class Merge:
    """A rule and the place where it is to be applied."""

    rule: Rule
    match: Match


@dataclass(frozen=True)
class Merges:
    """All merges of one graph, with every refusal kept.

    Parameters
    ----------
    chosen
        They share no node.
    refused
        Full matches that were not taken.
    nearest
        For each rule the mismatch that came furthest, for ``explain --why``.
    operators
        Operators of the graph before any merge, views not counted: the kernels that a run
        without fusion would launch.
    """

    chosen: tuple[Merge, ...]
    refused: tuple[Refusal, ...]
    nearest: dict[str, Mismatch]
    operators: int

    def counts(self) -> Counter[str]:
        """Merges of each category."""
        return Counter(merge.rule.category for merge in self.chosen)


def find_merges(graph: Graph, rules: Sequence[Rule], hardware: Hardware) -> Merges:
    """Match every rule, in order of priority, at every node that can be its root."""
    taken: set[str] = set()
    chosen: list[Merge] = []
    refused: list[Refusal] = []
    nearest: dict[str, Mismatch] = {}
    by_op: dict[str, list[str]] = {}
    for node in graph.nodes.values():
        by_op.setdefault(node.op, []).append(node.name)
    for rule in rules:
        for name in (n for op in rule.root for n in by_op.get(op, ())):
            if name in taken:
                continue
            found = rule.match(graph, name)
            if isinstance(found, Mismatch):
                before = nearest.get(rule.name)
                if before is None or found.progress > before.progress:
                    nearest[rule.name] = found
                continue
            verdict = _judge(graph, rule, found, hardware, taken)
            if verdict:
                chosen.append(Merge(rule, found))
                taken.update(found.members)
            else:
                refused.append(Refusal(rule.name, verdict.reason, verdict.culprit))
    operators = sum(node.op not in ("", "reshape") for node in graph.nodes.values())
    return Merges(tuple(chosen), tuple(refused), nearest, operators)


def _judge(graph: Graph, rule: Rule, match: Match, hardware: Hardware, taken: set[str]) -> Verdict:
    """What holds for every rule, then the rule's own judgement."""
    for member in match.members:
        if member in taken:
            return no("a rule of higher priority has taken it", member)
    leak = leaking(graph, match)
    if leak is not None:
        return no("it is read elsewhere as well", leak)
    late = late_operand(graph, match)
    if late is not None:
        return no("an operand is made only after the first result is read", late)
    return rule.check(graph, match, hardware)
