"""Search in one workload: candidates from templates, rules and evolution, and what they gave."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

from tvmfuse.database import Record, task_hash
from tvmfuse.errors import LogError
from tvmfuse.hardware.record import Hardware
from tvmfuse.tuning.cost_model import SharedCostModel
from tvmfuse.tuning.measure import Measured, Result
from tvmfuse.tuning.space import SpaceFn, make_context, target_of
from tvmfuse.tuning.task import private_copy

_POPULATION, _GENERATIONS = 40, 2
_NO_LIMIT = 1 << 30
_REPLAYS = 12
_RETRIES = 4


@dataclass(frozen=True)
class Templates:
    """The two faces of the schedule templates.

    Parameters
    ----------
    default
        ``default(func, hardware) -> Schedule``: best by the analytic model.
    space
        ``space(func, hardware) -> [Schedule]``: with sampled decisions in their traces.
    """

    default: Callable[[Any, Hardware], Any]
    space: Callable[[Any, Hardware], list[Any]]

    def default_of(self, module: Any, hardware: Hardware) -> Any:
        """Zero-trial schedule of a module; raises what the template raises."""
        return self.default(private_copy(module)["main"], hardware)

    def space_of(self, module: Any, hardware: Hardware) -> list[Any]:
        """Spanning schedules of a module; raises what the template raises."""
        return self.space(private_copy(module)["main"], hardware)


def own_templates() -> Templates:
    """The templates of this package."""
    from tvmfuse import schedules

    return Templates(schedules.default_schedule, schedules.space)


class Search:
    """Evolutionary search over the schedules of one workload.

    Parameters
    ----------
    module
        Unscheduled, one PrimFunc ``main``.
    hardware
        What to schedule for.
    space
        Makes the schedules that span the space, see :mod:`tvmfuse.tuning.space`.
    model
        Cost model shared with other searches.
    batch
        Candidates asked for at a time, at most.
    seed
        Seed of the search.

    Attributes
    ----------
    trouble
        What went wrong when the space was made; empty if nothing.
    """

    def __init__(
        self,
        module: Any,
        hardware: Hardware,
        space: SpaceFn,
        model: SharedCostModel,
        batch: int,
        seed: int,
    ) -> None:
        self.module, self.key = module, task_hash(module)
        self.trouble = ""
        self._hardware, self._space, self._model = hardware, space, model
        self._batch, self._seed = batch, seed
        self._args_info = ms.arg_info.ArgInfo.from_prim_func(module["main"])
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(module)
        self._context: Any = None
        self._spaces: list[Any] | None = None
        self._seen: set[str] = set()
        self._earlier: list[Record] = []
        self._target = target_of(hardware)

    def remember(self, records: Sequence[Record]) -> None:
        """Take over the log's records of this workload, before the first batch.

        They seed the population and teach the cost model; none is measured again.
        """
        self._earlier = list(records)

    def candidate(self, schedule: Any) -> Any:
        """Wrap a schedule of this workload, e.g. the zero-trial default, for ``learn``."""
        self._seen.add(_identity(schedule.trace))
        return ms.MeasureCandidate(schedule, self._args_info)

    def next_batch(self) -> list[Any]:
        """Return new candidates; an empty list when the space holds no more."""
        if self._context is None and not self._open():
            return []
        for _ in range(_RETRIES):
            try:
                found = self._context.generate_measure_candidates() or []
            except Exception as error:  # a trace that fails under some decisions aborts them all
                self.trouble = _last_line(error)
                return self.next_batch() if self._drop_faulty_spaces() else []
            self._tell_strategy(found)
            fresh = [c for c in found if _identity(c.sch.trace) not in self._seen]
            self._seen.update(_identity(c.sch.trace) for c in fresh)
            if fresh or not found:
                return fresh
        return []

    def learn(self, candidates: Sequence[Any], results: Sequence[Result]) -> None:
        """Take in what measuring gave; a default from before the first batch teaches nothing."""
        if self._context is None:
            return
        seconds = [r.seconds if isinstance(r, Measured) else math.inf for r in results]
        for candidate, time_s in zip(candidates, seconds, strict=True):
            if math.isfinite(time_s):
                self._database.commit_tuning_record(self._record(candidate, time_s))
        self._model.learn(self._context, candidates, seconds)

    def _record(self, candidate: Any, seconds: float) -> Any:
        return ms.database.TuningRecord(
            candidate.sch.trace, self._workload, [seconds], self._target, self._args_info
        )

    def close(self) -> None:
        """Free the populations."""
        self._context = None

    def _open(self) -> bool:
        if self._spaces is None:
            try:
                self._spaces = self._space(self.module, self._hardware)
            except Exception as error:  # the other parts of the space are still there
                self._spaces, self.trouble = [], _last_line(error)
        if not self._spaces:
            return False
        self._context = make_context(
            self.module, self._hardware, self._seed, _POPULATION, _GENERATIONS
        )
        self._context.pre_tuning(_NO_LIMIT, self._batch, self._spaces, self._database, self._model)
        self._seed_population()
        return True

    def _drop_faulty_spaces(self) -> bool:
        """Keep the spaces that replay under other decisions too; False if that changes nothing."""
        before = self._spaces or []
        self._spaces = [s for s in before if self._replays(s.trace)]
        self._context = None
        return 0 < len(self._spaces) < len(before)

    def _replays(self, trace: Any) -> bool:
        undecided = Trace(trace.insts, {})
        for seed in range(1, _REPLAYS + 1):
            schedule = Schedule(self.module, seed=seed, error_render_level="none")
            try:
                undecided.apply_to_schedule(schedule, remove_postproc=True)
            except Exception:  # whatever it is, MetaSchedule would stop at it as well
                return False
        return True

    def _seed_population(self) -> None:
        candidates, seconds = [], []
        for old in self._earlier:
            try:
                schedule = old.schedule(self.module)
            except LogError:  # a trace of an older template: it stays in the log, unused here
                continue
            self._seen.add(_identity(schedule.trace))
            if not schedule.trace.decisions:
                continue  # a zero-trial default: nothing in it can be mutated
            candidates.append(ms.MeasureCandidate(schedule, self._args_info))
            seconds.append(old.seconds)
            self._database.commit_tuning_record(self._record(candidates[-1], old.seconds))
        self._model.learn(self._context, candidates, seconds)

    def _tell_strategy(self, candidates: Sequence[Any]) -> None:
        """The strategy only counts results; it must have counted before it goes on."""
        nothing = ms.runner.RunnerResult([0.0], None)
        self._context.notify_runner_results(list(candidates), [nothing] * len(candidates))


def _identity(trace: Any) -> str:
    """A trace as text, without what post-processing adds."""
    return json.dumps(trace.as_json(remove_postproc=True), default=str)


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1].strip()[:300]}"
