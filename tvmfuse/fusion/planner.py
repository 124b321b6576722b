"""Make the plan: groups of kernels for one workload and one target; analysis only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tvmfuse.errors import BuildError
from tvmfuse.fusion.feasibility import MatrixRow, assess
from tvmfuse.fusion.group import Beside, Group, InPlace, Overwritten, Refusal, home_of
from tvmfuse.fusion.grow import Grower
from tvmfuse.fusion.kernels import KernelGraph
from tvmfuse.fusion.plan import Plan
from tvmfuse.fusion.rules.diagonal import DIAGONAL, DiagonalRule
from tvmfuse.fusion.rules.vertical import VERTICAL, VerticalRule
from tvmfuse.hardware import Hardware
from tvmfuse.hardware.limits import limits_of
from tvmfuse.workload import Workload


def make_plan(
    workload: Workload,
    hardware: Hardware,
    rules: Iterable[VerticalRule] = VERTICAL,
    off: Iterable[VerticalRule] = (),
    diagonal: Iterable[DiagonalRule] = DIAGONAL,
    split: Mapping[frozenset[str], str] | None = None,
) -> Plan:
    """Group the kernels of a lowered workload.

    Parameters
    ----------
    workload
        After `tvmfuse.passes.lower`: ``main`` is a chain of ``call_tir`` with unique names.
    hardware
        The target.
    rules
        Vertical rules in order of priority.
    off
        Vertical rules that are switched off.
    diagonal
        Rules of what is written straight into where it is wanted.
    split
        Groups, as their members, that measuring found slower than their parts, and what it found.
        They end before what joined them last.

    Returns
    -------
    Plan
        Every ``call_tir`` that returns one tensor stands in exactly one group.

    Raises
    ------
    BuildError
        The result is not a partition: a fault of the planner, never silent.
    """
    graph = KernelGraph(workload.module)
    limits = limits_of(hardware)
    grower = Grower(graph, rules, limits, off, split, hardware)
    groups, matrix = [], []
    for grown in grower.grow():
        members, steps = tuple(grown.members), tuple(grown.rules)
        ops = tuple(graph.kernels[m].op for m in members)
        rule = _equation(ops) if len(ops) > 1 else ""
        category = "vertical" if rule else ""
        groups.append(Group(members, ops, category, rule, grown.anchor, steps, grown.work))
        if rule and grown.work is not None:
            matrix.append(MatrixRow(members[-1], ops, grown.work, assess(grown.work, limits)))
    refused = [Refusal(s.rule, s.verdict.reason, s.verdict.culprit) for s in grower.stopped]
    moves: list[InPlace | Beside | Overwritten] = []
    for diagonal_rule in diagonal:
        found, apart = diagonal_rule.find(graph, groups, tuple(moves))
        moves += found
        refused += apart
    in_place = tuple(m for m in moves if isinstance(m, InPlace))
    crowded = _crowded(graph, in_place)
    placed = {name for place in in_place for name in (place.name, *place.inside)}
    over = (m for m in moves if isinstance(m, Overwritten))
    plan = Plan(
        groups=tuple(groups),
        refused=tuple(refused),
        in_place=in_place,
        overwritten=tuple(m for m in over if m.operand not in crowded and m.name not in placed),
        beside=tuple(m for m in moves if isinstance(m, Beside)),
        matrix=tuple(matrix),
    )
    check_partition(graph, plan)
    return plan


def _crowded(graph: KernelGraph, in_place: tuple[InPlace, ...]) -> set[str]:
    """What is not written over: parts, and the concatenations whose parts are read elsewhere."""
    home = {inside: place.name for place in in_place for inside in place.inside}
    found = set(home)
    for part in home:
        if len(graph.users.get(part, ())) > 1:
            found.add(home_of(home, part))
    return found


def check_partition(graph: KernelGraph, plan: Plan) -> None:
    """Every kernel in exactly one group, and nothing but a group's last member read outside.

    Raises
    ------
    BuildError
        Names the binding and its groups.
    """
    owner: dict[str, int] = {}
    for number, group in enumerate(plan.groups):
        for member in group.members:
            if member in owner:
                raise BuildError(f"the plan puts {member!r} into two groups")
            owner[member] = number
    missing = graph.kernels.keys() - owner.keys()
    if missing:
        raise BuildError(f"the plan has no group for {sorted(missing)}")
    for number, group in enumerate(plan.groups):
        for member in group.members[:-1]:
            users = graph.users.get(member, ())
            if member in graph.outputs or any(owner.get(u) != number for u in users):
                raise BuildError(f"{member!r} is read outside its group, whose result it is not")


def _equation(ops: tuple[str, ...]) -> str:
    text = f"{ops[0]}(x)"
    for op in ops[1:]:
        text = f"{op}({text})"
    return text
