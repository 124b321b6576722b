"""Measure one kernel against the kernels of its parts, in turns, until one is the better."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvmfuse.fusion.feasibility import MARGIN
from tvmfuse.tuning.chain import Chain
from tvmfuse.tuning.measure import Failure, Measured, Measurer, Result

CLEAR = 0.97  # a fused kernel below this part of its parts' time is not measured again
FIRST_ROUNDS, ROUNDS, MORE_ROUNDS = 2, 4, 10


@dataclass(frozen=True)
class Compared:
    """What measuring found.

    Parameters
    ----------
    fused
        Seconds of the one kernel, or why it has none.
    parts_s
        Seconds of all parts, one behind the other.
    close
        Whether a short look at each was not enough.
    ratio
        Fused by parts, the median of the rounds.
    """

    fused: float | Failure
    parts_s: float
    close: bool
    ratio: float = 0.0

    @property
    def pays(self) -> bool:
        """Whether it stays fused: within the margin it does, because it needs less memory."""
        if isinstance(self.fused, Failure):
            return False
        return min(self.fused / self.parts_s, self.ratio) <= 1.0 + MARGIN


def compare(
    measurer: Measurer,
    key: str,
    definition: Any,
    fused: Any,
    parts: Chain,
    tolerance: float | None,
    grey: bool,
) -> Compared | Failure:
    """Measure both.

    Parameters
    ----------
    measurer
        Times candidates.
    key
        A name of the group for the measurer.
    definition
        The unscheduled module of the group.
    fused, parts
        The two candidates.
    tolerance
        Largest accepted relative error; None for the default of the dtype.
    grey
        Whether the estimate cannot tell: then both are measured several times in any case.

    Returns
    -------
    Compared or Failure
        The latter when the parts cannot be measured: then nothing is known.
    """
    measurer.register(key, definition, tolerance)
    seen: list[tuple[float, float]] = []
    for rounds in (FIRST_ROUNDS, ROUNDS, MORE_ROUNDS):
        found = _in_turns(measurer, key, fused, parts, rounds)
        if isinstance(found.parts, Failure):
            return found.parts
        if isinstance(found.fused, Failure):  # if it ran a moment ago, nothing is known
            return found.fused if seen else Compared(found.fused, found.parts, close=False)
        seen += found.pairs
        result = _judged(seen)
        if rounds == FIRST_ROUNDS:
            if not grey and result.fused <= CLEAR * result.parts_s:  # type: ignore[operator]
                return dataclasses.replace(result, close=False)
        elif result.pays:
            return result
    return result


@dataclass(frozen=True)
class _Turns:
    """The best of some rounds for each of both, and what each round gave."""

    fused: float | Failure
    parts: float | Failure
    pairs: list[tuple[float, float]]


def _in_turns(measurer: Measurer, key: str, fused: Any, parts: Chain, rounds: int) -> _Turns:
    found = dict(measurer.measure(key, [fused, parts] * rounds))
    results = [found[i] for i in range(2 * rounds)]
    one, other = _best(results[::2]), _best(results[1::2])
    failed = isinstance(one, Failure) or isinstance(other, Failure)
    times = [] if failed else [r.seconds for r in results if isinstance(r, Measured)]
    return _Turns(one, other, list(zip(times[::2], times[1::2], strict=True)))


def _judged(pairs: Sequence[tuple[float, float]]) -> Compared:
    """Whatever else the machine does only adds time, so the best of each counts.

    One disturbance of all rounds of one side would still decide: the ratios of the rounds, each
    measured within a moment, must say so too.
    """
    one, other = (min(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(fused / parts for fused, parts in pairs)
    return Compared(one, other, close=True, ratio=ratio)


def _best(results: Sequence[Result]) -> float | Failure:
    failure = next((r for r in results if isinstance(r, Failure)), None)
    return failure or min(r.seconds for r in results if isinstance(r, Measured))
