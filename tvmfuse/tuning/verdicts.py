"""Measure one kernel against the kernels of its parts, in turns, until one is the better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvmfuse.fusion.feasibility import MARGIN
from tvmfuse.tuning.chain import Chain
from tvmfuse.tuning.measure import Failure, Measured, Measurer, Result

CLEAR = 0.97  # a fused kernel below this part of its parts' time is not measured again
FIRST_ROUNDS, ROUNDS = 2, 4


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
    """

    fused: float | Failure
    parts_s: float
    close: bool

    @property
    def pays(self) -> bool:
        """Whether it stays fused: within the margin it does, because it needs less memory."""
        if isinstance(self.fused, Failure):
            return False
        return self.fused <= (1.0 + MARGIN) * self.parts_s


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
    one, other = _in_turns(measurer, key, fused, parts, FIRST_ROUNDS)
    if isinstance(other, Failure):
        return other
    if isinstance(one, Failure):
        return Compared(one, other, close=False)
    if not grey and one <= CLEAR * other:
        return Compared(one, other, close=False)
    one_again, other_again = _in_turns(measurer, key, fused, parts, ROUNDS)
    if isinstance(one_again, Failure):  # it ran a moment ago: nothing is known
        return one_again
    if isinstance(other_again, Failure):
        return other_again
    return Compared(min(one, one_again), min(other, other_again), close=True)


def _in_turns(
    measurer: Measurer, key: str, fused: Any, parts: Chain, rounds: int
) -> tuple[float | Failure, float | Failure]:
    """The best of some rounds for each of both: whatever else the machine does only adds time."""
    found = dict(measurer.measure(key, [fused, parts] * rounds))
    results = [found[i] for i in range(2 * rounds)]
    return _best(results[::2]), _best(results[1::2])


def _best(results: Sequence[Result]) -> float | Failure:
    failure = next((r for r in results if isinstance(r, Failure)), None)
    return failure or min(r.seconds for r in results if isinstance(r, Measured))
