"""Where the next batch of trials goes: plain arithmetic on what rounds have brought so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

PLATEAU_ROUNDS = 3
PLATEAU_GAIN = 0.01
VARIANT_REACH = 1.3
_SLOWEST_FLOPS = 1e9  # stands in for a kernel that never ran
_HEADROOM = (0.02, 0.9)


@dataclass
class VariantState:
    """One algorithm for a task.

    Parameters
    ----------
    best_s
        Its best time in seconds; infinite before the first success.
    trials
        Candidates measured.
    exhausted
        Its space holds no candidate that was not measured.
    """

    best_s: float = math.inf
    trials: int = 0
    exhausted: bool = False


@dataclass
class TaskState:
    """What is known of a task's search.

    Parameters
    ----------
    weight
        How often the kernel runs in one inference.
    flops
        Operations of one call.
    variants
        One state for each algorithm.
    gains
        Relative gain of each round, the latest last.
    """

    weight: int
    flops: float
    variants: list[VariantState]
    gains: list[float] = field(default_factory=list)

    @property
    def best_s(self) -> float:
        """Best time over all variants, in seconds."""
        return min(v.best_s for v in self.variants)

    @property
    def trials(self) -> int:
        """Trials of all variants."""
        return sum(v.trials for v in self.variants)

    @property
    def finished(self) -> bool:
        """Whether more trials are a waste: a plateau, or nothing left to try."""
        if all(v.exhausted for v in self.contenders()):
            return True
        recent = self.gains[-PLATEAU_ROUNDS:]
        return len(recent) == PLATEAU_ROUNDS and max(recent) < PLATEAU_GAIN

    def contenders(self) -> list[VariantState]:
        """Variants that are near enough to the best to be searched in."""
        best = self.best_s
        if math.isinf(best):
            return self.variants
        return [v for v in self.variants if v.best_s <= VARIANT_REACH * best]

    def next_variant(self) -> int:
        """Index of the contender whose turn it is: the better, the more trials it gets."""
        best = self.best_s

        def due(variant: VariantState) -> float:
            handicap = (variant.best_s / best) ** 4 if math.isfinite(best) else 1.0
            return (variant.trials + 1) * handicap

        open_ones = [v for v in self.contenders() if not v.exhausted]
        chosen = min(open_ones, key=due)
        return next(i for i, v in enumerate(self.variants) if v is chosen)

    def note_round(self, before_s: float) -> None:
        """Record what a round brought, given the best time before it."""
        now_s = self.best_s
        if math.isinf(now_s):
            self.gains.append(0.0)
        else:
            self.gains.append(1.0 if math.isinf(before_s) else 1.0 - now_s / before_s)

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
