"""Settle what the feasibility matrix cannot tell: measure groups against their parts, plan again.

A group whose verdict is in the tuning log is not measured again. One that lost is planned without
what joined it last, and what is left of it is a group like any other: it is looked up, or measured,
in its turn, until every group of the plan pays, or is a single operator.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tvmfuse.choose import choose_kernels
from tvmfuse.database import FusionVerdict, TuningLog
from tvmfuse.errors import BuildError
from tvmfuse.fusion.feasibility import GREY, MEASURED, MatrixRow
from tvmfuse.fusion.group import Group
from tvmfuse.fusion.plan import Plan
from tvmfuse.fusion.planner import make_plan
from tvmfuse.fusion.rules.selection import RuleSet
from tvmfuse.hardware import Hardware
from tvmfuse.passes.group import PREFIX
from tvmfuse.passes.parts import Part, parts_of
from tvmfuse.passes.pipeline import fuse
from tvmfuse.passes.specialize import GroupKernel, group_kernels
from tvmfuse.tuning.chain import Chain, Link, Packing
from tvmfuse.tuning.measure import Failure, Measurer
from tvmfuse.tuning.spills import count_spills
from tvmfuse.tuning.task import as_main
from tvmfuse.tuning.verdicts import CLEAR, compare
from tvmfuse.workload import Workload


@dataclass(frozen=True)
class Settled:
    """A plan in which no group is known to lose against its parts, and what it became.

    Parameters
    ----------
    plan, fused, groups
        As the planner and the passes make them.
    verdicts
        For each distinct group that was measured, in this run or before, the last member of the
        first one and the verdict.
    measured
        How many of them were measured in this run.
    open
        Groups that were to be measured and were not, with the reason.
    """

    plan: Plan
    fused: Workload
    groups: list[GroupKernel]
    verdicts: tuple[tuple[str, FusionVerdict], ...] = ()
    measured: int = 0
    open: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> list[dict[str, Any]]:
        """Plain data, the groups that were split first."""
        rows = [{"member": m, **v.to_json(), "said": v.said} for m, v in self.verdicts]
        return sorted(rows, key=lambda row: bool(row["fused"]))


@dataclass
class Bench:
    """What measuring needs.

    Parameters
    ----------
    measurer
        Times candidates; the caller closes it.
    seconds
        After so long nothing more is measured in this run; the rest stays as estimated.
    again
        Whether what the log says is measured again.
    tell
        Called with a line for each group that is split.
    """

    measurer: Measurer
    seconds: float = float("inf")
    again: bool = False
    tell: Callable[[str], None] = lambda text: None
    _start_s: float = field(default_factory=time.monotonic)

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() - self._start_s > self.seconds


def settle(
    lowered: Workload,
    hardware: Hardware,
    rules: RuleSet,
    log: TuningLog | None = None,
    bench: Bench | None = None,
) -> Settled:
    """Plan and fuse a lowered workload; obey measured verdicts, and measure what has none.

    Parameters
    ----------
    rules
        Of this run.
    log
        Holds verdicts; None for estimates alone.
    bench
        Measures what the log does not hold, into the log; None for no measuring.
    """
    return _Settler(lowered, hardware, rules, log, bench).run()


class _Settler:
    """One call of :func:`settle`."""

    def __init__(
        self,
        lowered: Workload,
        hardware: Hardware,
        rules: RuleSet,
        log: TuningLog | None,
        bench: Bench | None,
    ) -> None:
        self._lowered, self._hardware, self._rules = lowered, hardware, rules
        self._log, self._bench = log, bench
        self._known: dict[str, FusionVerdict] = {}  # by key: looked up or measured in this run
        self._open: dict[str, str] = {}  # by key
        self._measured = 0

    def run(self) -> Settled:
        """Plan until nothing more is split."""
        split: dict[frozenset[str], str] = {}
        told: dict[str, tuple[str, FusionVerdict]] = {}  # by key: equal groups are told once
        while True:
            rules = self._rules
            plan = make_plan(
                self._lowered, self._hardware, rules.vertical, rules.off, rules.diagonal, split
            )
            fused = fuse(self._lowered, plan)
            groups = group_kernels(fused.module, self._hardware)
            found = dict(self._verdicts(plan, fused, groups))
            for group, verdict in found.items():
                told.setdefault(verdict.group, (group.members[-1], verdict))
                if not verdict.fused:
                    split[frozenset(group.members)] = verdict.said
            if all(verdict.fused for verdict in found.values()):
                shown = dataclasses.replace(plan, matrix=_settled_rows(plan, found))
                open_groups = tuple(self._open.items())
                return Settled(
                    shown, fused, groups, tuple(told.values()), self._measured, open_groups
                )

    def _verdicts(
        self, plan: Plan, fused: Workload, groups: list[GroupKernel]
    ) -> Iterator[tuple[Group, FusionVerdict]]:
        """Each group of several operators with its verdict, as far as there is one."""
        if self._log is None:
            return
        kernels = {g.name: g for g in groups}
        rows = {row.member: row for row in plan.matrix}
        for group in plan.groups:
            kernel, row = kernels.get(PREFIX + group.members[-1]), rows.get(group.members[-1])
            if kernel is None or row is None:
                continue
            verdict = self._look_up(kernel.key)
            if verdict is None and self._bench is not None and kernel.key not in self._open:
                verdict = self._measure(group, kernel, row, fused, self._bench)
            if verdict is not None:
                yield group, verdict

    def _look_up(self, key: str) -> FusionVerdict | None:
        if key in self._known:
            return self._known[key]
        if self._log is None or (self._bench is not None and self._bench.again):
            return None
        found = self._log.verdict(key)
        if found is not None:
            self._known[key] = found
        return found

    def _measure(
        self, group: Group, kernel: GroupKernel, row: MatrixRow, fused: Workload, bench: Bench
    ) -> FusionVerdict | None:
        """Measure one group and store what was found; None, with the reason kept, if it fails."""
        if bench.late:
            self._open[kernel.key] = "no time was left"
            return None
        choice = choose_kernels([kernel], self._log, self._hardware)[kernel.name]
        try:
            parts = parts_of(fused.module, kernel.name, self._hardware)
        except BuildError as error:
            self._open[kernel.key] = str(error)
            return None
        index = choice.variant if kernel.variants else None
        # With as much effort on either side: tuned parts only against a tuned group.
        known = self._log if choice.origin == "log" else None
        chain = self._chain(kernel, parts, index, known)
        definition, one = as_main(kernel.kernels[choice.variant]), as_main(choice.kernel)
        rtol = kernel.variants[choice.variant].rtol if kernel.variants else None
        grey = row.assessment.verdict == GREY
        found = compare(bench.measurer, f"group {kernel.key}", definition, one, chain, rtol, grey)
        if isinstance(found, Failure):
            self._open[kernel.key] = _words(found)
            return None
        verdict = FusionVerdict(
            group=kernel.key,
            rule=group.rule,
            parts=len(parts),
            fused=found.pays,
            fused_us=None if isinstance(found.fused, Failure) else found.fused * 1e6,
            parts_us=found.parts_s * 1e6,
            asked=row.assessment.reason if grey else f"is it under {CLEAR} of its parts?",
            intermediate_bytes=row.assessment.middle_bytes,
            spills=count_spills(one, self._hardware) if found.close else None,
            parts_spills=self._spills_of(chain) if found.close else None,
            failure=_words(found.fused) if isinstance(found.fused, Failure) else "",
        )
        self._keep(verdict, bench)
        return verdict

    def _keep(self, verdict: FusionVerdict, bench: Bench) -> None:
        assert self._log is not None
        self._log.set_verdict(verdict)
        self._known[verdict.group] = verdict
        self._measured += 1
        if not verdict.fused:
            bench.tell(f"{verdict.rule} is split again: {verdict.said}")

    def _chain(
        self, kernel: GroupKernel, parts: list[Part], variant: int | None, log: TuningLog | None
    ) -> Chain:
        """The parts with the best kernels of the log; the only anchor takes the group's variant."""
        links = []
        for part in parts:
            own = part.kernel
            if own.variants and variant is not None:
                own = dataclasses.replace(
                    own, variants=(own.variants[variant],), kernels=(own.kernels[variant],)
                )
            choice = choose_kernels([own], log, self._hardware)[own.name]
            packing = None
            if own.weight >= 0 and kernel.weight < 0:  # the group has the weight as it is
                packing = Packing(own.weight, part.anchor, choice.variant)
            module = as_main(choice.kernel)
            links.append(Link(module, part.operands, part.shape, part.dtype, packing))
        return Chain(tuple(links), self._hardware)

    def _spills_of(self, chain: Chain) -> int:
        return sum(count_spills(link.module, self._hardware) for link in chain.links)


def _words(failure: Failure) -> str:
    return f"{failure.kind}: {failure.detail}"


def _settled_rows(plan: Plan, found: dict[Group, FusionVerdict]) -> tuple[MatrixRow, ...]:
    """The matrix with what was measured in the place of what was estimated."""
    said = {group.members[-1]: verdict.said for group, verdict in found.items()}
    return tuple(
        dataclasses.replace(
            row,
            assessment=dataclasses.replace(
                row.assessment, verdict=MEASURED, reason=said[row.member]
            ),
        )
        if row.member in said
        else row
        for row in plan.matrix
    )
