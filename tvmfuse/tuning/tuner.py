"""The tuning loop: choose a task, propose candidates, measure them, commit, learn."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tvmfuse.database import TaskState as LoggedState
from tvmfuse.database import TuningLog
from tvmfuse.hardware.record import Hardware
from tvmfuse.tuning.allocate import Arm, TaskState, next_task
from tvmfuse.tuning.cost_model import SharedCostModel
from tvmfuse.tuning.interrupt import FirstInterrupt
from tvmfuse.tuning.measure import Measured, Measurer, Result
from tvmfuse.tuning.search import Search, Templates, own_templates
from tvmfuse.tuning.space import rule_spaces
from tvmfuse.tuning.task import Task

BATCH, RULES_BATCH = 16, 8
_KEPT_RECORDS = 64


@dataclass(frozen=True)
class Budget:
    """What a run may spend, earlier interrupted runs on the same log included.

    Parameters
    ----------
    trials
        Candidates to measure over all tasks; None for no limit.
    seconds
        Wall-clock seconds; None for no limit.
    """

    trials: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < 0:
            raise ValueError(f"Budget.trials must not be negative, got {self.trials}")
        if self.seconds is not None and not self.seconds >= 0:
            raise ValueError(f"Budget.seconds must not be negative, got {self.seconds}")

    def within(self, asked: dict[str, float]) -> bool:
        """Whether a run that asked for ``asked`` (no entry: no limit) did all of this."""
        mine = {"trials": self.trials, "seconds": self.seconds}
        return all(_limit(mine[name]) <= _limit(asked.get(name)) for name in ("trials", "seconds"))


def _limit(value: float | None) -> float:
    return math.inf if value is None else value


class TuningProgress(Protocol):
    """Who is told how it goes; ``tvmfuse.report.progress.Progress`` is one."""

    def tuning(
        self,
        task: str,
        done: int,
        total: int | None,
        best_ms: float | None,
        trials_per_s: float,
        seconds_left: float | None,
    ) -> None:
        """Show the state after a trial."""

    def warn(self, text: str) -> None:
        """Say something that should not go unnoticed."""


@dataclass(frozen=True)
class TaskBest:
    """Best time of a task in seconds, and the index of the module in ``task.modules``."""

    seconds: float
    variant: int


@dataclass(frozen=True)
class TuneResult:
    """What a run did.

    Parameters
    ----------
    trials
        Candidates measured in this run, failures included.
    failures
        How many failed, by kind.
    seconds
        Wall-clock time of this run, search included.
    trials_per_s
        ``trials / seconds``; 0 when nothing was measured.
    best
        By ``task.key``; tasks without any success are missing.
    interrupted
        Ended by Ctrl-C or ``should_stop``: another run continues.
    skipped
        Tasks that the log says are complete for this budget.
    drifts
        How often the machine's speed moved by more than 5 % between two sentinel timings.
    restarts
        Measuring children that a candidate took with it.
    """

    trials: int
    failures: dict[str, int]
    seconds: float
    trials_per_s: float
    best: dict[str, TaskBest]
    interrupted: bool
    skipped: int
    drifts: int
    restarts: int


def tune(
    tasks: Sequence[Task],
    log: TuningLog,
    measurer: Measurer,
    hardware: Hardware,
    budget: Budget,
    *,
    seed: int = 0,
    progress: TuningProgress | None = None,
    should_stop: Callable[[], bool] | None = None,
    retune: bool = False,
    templates: Templates | None = None,
) -> TuneResult:
    """Tune tasks into a log.

    Every success is in the log as soon as it was measured. Tasks that got what an equal or
    larger budget asked for are skipped; an interrupted run goes on with what is left of its
    budget.

    Parameters
    ----------
    tasks
        Distinct kernels with their weights.
    log
        Open for writing.
    measurer
        Times candidates; closed at the end.
    hardware
        What is tuned for.
    budget
        Trials and seconds for the whole run.
    seed
        Seed of the search.
    progress
        Told after every trial.
    should_stop
        Asked between trials; True ends tuning and keeps everything.
    retune
        Continue tasks that are complete, with the whole budget.
    templates
        Where schedules come from; by default ``tvmfuse.schedules``.

    Raises
    ------
    MeasureError
        Measuring as a whole cannot go on.
    LogError
        A record cannot be written.
    KeyboardInterrupt
        At the second Ctrl-C; what was measured is in the log.
    """
    with FirstInterrupt() as interrupt:
        run = _Run(
            tasks, log, measurer, hardware, budget, seed, retune, templates or own_templates()
        )
        run.progress = progress
        run.stop_asked = lambda: interrupt.seen or bool(should_stop and should_stop())
        with contextlib.closing(measurer):
            try:
                run.go()
                run.complete = not run.interrupted
            except KeyboardInterrupt:
                run.interrupted = True
                if interrupt.seen:  # this is the second one
                    raise
            finally:
                run.store_states()
    return run.result()


class _Job:
    """A task with its searches, one an arm: of each module the templates, then the rules."""

    def __init__(
        self, task: Task, before: LoggedState | None, make: Callable[[Any, bool], Search]
    ) -> None:
        self.task = task
        self.trials_before = before.trials if before is not None else 0
        arms = [Arm(i, rules) for i in range(len(task.modules)) for rules in (False, True)]
        self.state = TaskState(task.weight, task.flops, arms)
        self.searches = [make(task.modules[arm.variant], arm.rules) for arm in arms]


class _Run:
    """One call of ``tune``."""

    def __init__(
        self,
        tasks: Sequence[Task],
        log: TuningLog,
        measurer: Measurer,
        hardware: Hardware,
        budget: Budget,
        seed: int,
        retune: bool,
        templates: Templates,
    ) -> None:
        self.progress: TuningProgress | None = None
        self.stop_asked: Callable[[], bool] = lambda: False
        self.interrupted = self.complete = False
        self._log, self._measurer, self._budget = log, measurer, budget
        self._start_s = time.monotonic()
        self._trials = 0
        self._failures: Counter[str] = Counter()
        self._tasks = tasks
        states = [log.task_state(task.key) for task in tasks]
        todo = [
            (task, state)
            for task, state in zip(tasks, states, strict=True)
            if retune or state is None or not (state.complete and budget.within(state.asked))
        ]
        self._skipped = len(tasks) - len(todo)
        self._used_trials, self._used_s = (0, 0.0) if retune else _used([s for _, s in todo])
        model = SharedCostModel(seed)

        def make(module: Any, rules: bool) -> Search:
            space = rule_spaces if rules else templates.space_of
            return Search(module, hardware, space, model, RULES_BATCH if rules else BATCH, seed)

        self._hardware, self._templates = hardware, templates
        self._jobs = [_Job(task, state, make) for task, state in todo]

    def go(self) -> None:
        """Defaults of all tasks, the heaviest first; then rounds until the budget is spent."""
        for job in sorted(self._jobs, key=lambda j: -j.task.weight * j.task.flops):
            for index, arm in enumerate(job.state.arms):
                if not arm.rules:
                    self._warm_up(job, index)
        states = [job.state for job in self._jobs]
        while self._may_go_on():
            chosen = next_task(states)
            if chosen is None:
                return
            self._round(self._jobs[chosen])

    def _warm_up(self, job: _Job, index: int) -> None:
        """Take over old records, or measure the zero-trial default."""
        arm, search = job.state.arms[index], job.searches[index]
        records = self._log.records(search.module, _KEPT_RECORDS)
        if records:
            search.remember(records)
            arm.best_s = records[0].seconds
            return
        if not self._may_go_on():
            return
        try:
            schedule = self._templates.default_of(search.module, self._hardware)
        except Exception as error:  # the search may still find something
            self._warn(f"{job.task.name}: no default schedule: {str(error).strip()[-300:]}")
            return
        self._measure(job, index, [search.candidate(schedule)])

    def _round(self, job: _Job) -> None:
        before_s = job.state.best_s
        index = job.state.next_arm()
        arm, search = job.state.arms[index], job.searches[index]
        candidates = search.next_batch()
        if search.trouble:
            self._warn(f"{job.task.name}: part of the search space is missing: {search.trouble}")
            search.trouble = ""
        if candidates:
            self._measure(job, index, candidates)
            job.state.note_round(arm, before_s)
        else:
            arm.exhausted = True
        for one, its in zip(job.state.arms, job.searches, strict=True):
            if one.finished(job.state.best_s):
                its.close()

    def _measure(self, job: _Job, index: int, candidates: list[Any]) -> None:
        """Measure, commit and learn; ends early when the run must stop."""
        arm, search = job.state.arms[index], job.searches[index]
        self._measurer.register(search.key, search.module, job.task.tolerance(arm.variant))
        if self._budget.trials is not None:
            candidates = candidates[: self._budget.trials - self._used_trials - self._trials]
        best_s = None if math.isinf(job.state.best_s) else job.state.best_s
        results: dict[int, Result] = {}
        modules = [c.sch.mod for c in candidates]
        for position, result in self._measurer.measure(search.key, modules, best_s):
            if position not in results:
                self._trials += 1
                arm.trials += 1
            results[position] = result
            self._take(job, arm, candidates[position], search.module, result)
            self._report(job)
            if self._must_stop():
                break
        done = sorted(results)
        search.learn([candidates[i] for i in done], [results[i] for i in done])

    def _take(self, job: _Job, arm: Arm, candidate: Any, module: Any, result: Result) -> None:
        if isinstance(result, Measured):
            self._log.commit(module, candidate.sch.trace, [result.seconds])
            arm.best_s = min(arm.best_s, result.seconds)
            return
        self._failures[result.kind] += 1
        if result.kind in ("wrong_answer", "unknown"):
            self._warn(f"{job.task.name}: {result.kind}: {result.detail}")

    def _may_go_on(self) -> bool:
        spent = self._budget.trials is not None and (
            self._used_trials + self._trials >= self._budget.trials
        )
        return not spent and not self._must_stop()

    def _must_stop(self) -> bool:
        """Whether the time is over or somebody asked to stop."""
        if not self.interrupted and self.stop_asked():
            self.interrupted = True
        return self.interrupted or self._seconds_left() <= 0

    def _seconds_left(self) -> float:
        return _limit(self._budget.seconds) - self._used_s - self._elapsed_s()

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._start_s

    def _report(self, job: _Job) -> None:
        if self.progress is None:
            return
        best_s, rate = job.state.best_s, self._trials / self._elapsed_s()
        total = self._budget.trials
        left_s = self._seconds_left()
        if total is not None:
            total -= self._used_trials
            left_s = min(left_s, (total - self._trials) / rate)
        self.progress.tuning(
            job.task.name,
            self._trials,
            total,
            None if math.isinf(best_s) else best_s * 1e3,
            rate,
            None if math.isinf(left_s) else left_s,
        )

    def _warn(self, text: str) -> None:
        if self.progress is not None:
            self.progress.warn(text)

    def store_states(self) -> None:
        """Tell the log how far each task is, for the next run."""
        asked = {"used_trials": float(self._used_trials + self._trials)}
        asked["used_seconds"] = self._used_s + self._elapsed_s()
        for name in ("trials", "seconds"):
            value = getattr(self._budget, name)
            if value is not None:
                asked[name] = float(value)
        for job in self._jobs:
            best_s = job.state.best_s
            self._log.set_task_state(
                LoggedState(
                    task=job.task.key,
                    name=job.task.name,
                    trials=job.trials_before + job.state.trials,
                    asked=asked,
                    complete=self.complete,
                    best_us=None if math.isinf(best_s) else best_s * 1e6,
                )
            )

    def result(self) -> TuneResult:
        """Sum up; the best comes from the log, so that skipped tasks are in it too."""
        seconds = self._elapsed_s()
        best: dict[str, TaskBest] = {}
        for task in self._tasks:
            records = [(self._log.best(m), i) for i, m in enumerate(task.modules)]
            times = [TaskBest(r.seconds, i) for r, i in records if r is not None]
            if times:
                best[task.key] = min(times, key=lambda b: b.seconds)
        return TuneResult(
            trials=self._trials,
            failures=dict(self._failures),
            seconds=seconds,
            trials_per_s=self._trials / seconds if self._trials else 0.0,
            best=best,
            interrupted=self.interrupted,
            skipped=self._skipped,
            drifts=self._measurer.drifts,
            restarts=self._measurer.restarts,
        )


def _used(states: Sequence[LoggedState | None]) -> tuple[int, float]:
    """What an earlier run over the same tasks spent: a task new to the log spent nothing."""
    if not states or any(state is None for state in states):
        return 0, 0.0
    asked = [state.asked for state in states if state is not None]

    def spent(limit: str) -> float:
        """What all of them used of a limit that their run had; of another it used nothing."""
        return min(a.get(f"used_{limit}", 0.0) if limit in a else 0.0 for a in asked)

    return int(spent("trials")), spent("seconds")
