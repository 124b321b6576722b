"""Where the next batch of trials goes: plain arithmetic on what rounds have brought so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

PLATEAU_ROUNDS = 3
PLATEAU_GAIN = 0.01
REACH = 1.3
_SLOWEST_FLOPS = 1e9  # stands in for a kernel that never ran
_HEADROOM = (0.02, 0.9)


@dataclass
class Arm:
    """One part of a task's space: our templates or MetaSchedule's rules on one variant.

    Parameters
    ----------
    variant
        Index in ``task.modules``.
    rules
        MetaSchedule's rules rather than our templates. On convolutions they cost ten times as
        much to search, lose by 10 to 100 %, and therefore get what the templates leave over.
    best_s
        Best time found by this arm, in seconds; infinite before its first success.
    trials
        Candidates measured.
    exhausted
        Its space holds no candidate that was not measured.
    gains
        Relative gain of the task in each of this arm's rounds, the latest last.
    """

    variant: int = 0
    rules: bool = False
    best_s: float = math.inf
    trials: int = 0
    exhausted: bool = False
    gains: list[float] = field(default_factory=list)

    def finished(self, task_best_s: float) -> bool:
        """Whether more trials are a waste: out of reach, a plateau, or nothing left to try."""
        recent = self.gains[-PLATEAU_ROUNDS:]
        plateau = len(recent) == PLATEAU_ROUNDS and max(recent) < PLATEAU_GAIN
        tried = self.trials > 0
        behind = math.isfinite(task_best_s) and self.best_s > REACH * task_best_s
        return self.exhausted or plateau or (tried and behind)


@dataclass
class TaskState:
    """What is known of a task's search.

    Parameters
    ----------
    weight
        How often the kernel runs in one inference.
    flops
        Operations of one call.
    arms
        The parts of its space.
    gains
        Relative gain of each round, the latest last.
    """

    weight: int
    flops: float
    arms: list[Arm]
    gains: list[float] = field(default_factory=list)

    @property
    def best_s(self) -> float:
        """Best time over all arms, in seconds."""
        return min(arm.best_s for arm in self.arms)

    @property
    def trials(self) -> int:
        """Trials of all arms."""
        return sum(arm.trials for arm in self.arms)

    @property
    def finished(self) -> bool:
        """Whether no arm is worth another trial."""
        return not self.open_arms()

    def open_arms(self) -> list[Arm]:
        """Arms worth a trial: the templates', and after them the rules' on near variants."""
        best_s = self.best_s
        going = [arm for arm in self.arms if not arm.finished(best_s)]
        near = {a.variant for a in self.arms if not a.best_s > REACH * best_s}
        return [a for a in going if not a.rules] or [a for a in going if a.variant in near]

    def next_arm(self) -> int:
        """Index of the open arm whose turn it is: the better, the more trials it gets."""
        best_s = self.best_s

        def due(arm: Arm) -> float:
            known = math.isfinite(best_s) and math.isfinite(arm.best_s)
            return (arm.trials + 1) * ((arm.best_s / best_s) ** 4 if known else 1.0)

        chosen = min(self.open_arms(), key=due)
        return next(i for i, arm in enumerate(self.arms) if arm is chosen)

    def note_round(self, arm: Arm, before_s: float) -> None:
        """Record what an arm's round brought, given the task's best time before it."""
        now_s, gain = self.best_s, 0.0
        if math.isfinite(now_s):
            gain = 1.0 if math.isinf(before_s) else 1.0 - now_s / before_s
        self.gains.append(gain)
        arm.gains.append(gain)

    def total_s(self) -> float:
        """Seconds that the task's calls take in one inference, guessed if it never ran."""
        one = self.best_s if math.isfinite(self.best_s) else self.flops / _SLOWEST_FLOPS
        return self.weight * one

    def expected_gain(self, peak_flops: float) -> float:
        """Relative gain to hope for from the next round.

        Half from what the last rounds brought, half from the distance to the best rate that
        any task has reached, which weighs less the longer one has tried.
        """
        if math.isinf(self.best_s):
            return 1.0 / (1 + len(self.gains))
        ideal_s = self.flops / peak_flops if peak_flops > 0 else 0.0
        low, high = _HEADROOM
        headroom = min(high, max(low, 1.0 - ideal_s / self.best_s))
        recent = self.gains[-2:]
        momentum = sum(recent) / len(recent) if recent else headroom
        return 0.5 * momentum + 0.5 * headroom / (1 + len(self.gains))


def peak_flops(tasks: Iterable[TaskState]) -> float:
    """Best rate any task has reached, in operations a second."""
    return max((t.flops / t.best_s for t in tasks if math.isfinite(t.best_s)), default=0.0)


def next_task(tasks: Sequence[TaskState]) -> int | None:
    """Index of the task with the largest expected gain in seconds; None if all are finished."""
    peak = peak_flops(tasks)
    open_ones = [i for i, t in enumerate(tasks) if not t.finished]
    if not open_ones:
        return None
    return max(open_ones, key=lambda i: tasks[i].total_s() * tasks[i].expected_gain(peak))
