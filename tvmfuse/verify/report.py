"""What verification found, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

LEVELS = ("kernel", "layer", "model", "metric")


@dataclass(frozen=True)
class Comparison:
    """One line of a level: for the model one input kind, for kernels and layers all of them.

    Parameters
    ----------
    passed
        Whether everything compared is within tolerance and of the right shape, type and
        finiteness.
    max_abs_err, max_rel_err
        Against float64 (kernels: against the unscheduled kernel); relative to the largest
        magnitude of each tensor.
    eager_rel_err
        The same for eager float32: what plain rounding costs. Model level only.
    tolerance
        The allowed relative error.
    finiteness_mismatches
        Elements that are a number on one side only.
    kind_mismatches
        Elements that are NaN on one side and infinite on the other; told, not a failure.
    reason
        Why not passed; empty otherwise.
    checked, skipped
        Kernels or layers that were compared, and that were not; ``note`` says why not.
    note
        What a reader should know of a line that passed.
    """

    passed: bool
    max_abs_err: float = 0.0
    max_rel_err: float = 0.0
    eager_rel_err: float = 0.0
    tolerance: float = 0.0
    finiteness_mismatches: int = 0
    kind_mismatches: int = 0
    reason: str = ""
    checked: int = 0
    skipped: int = 0
    note: str = ""


@dataclass(frozen=True)
class VerifyReport:
    """What verification found.

    Parameters
    ----------
    levels
        Level name to input kind to :class:`Comparison`; the level ``"model"`` always exists.
    reference
        ``"eager float64"``, or why eager float32 had to serve.
    seconds
        What each level took.
    diverging
        Kernels whose layers are off.
    """

    levels: dict[str, dict[str, Comparison]]
    reference: str
    seconds: dict[str, float] = field(default_factory=dict)
    diverging: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every comparison passed."""
        return all(c.passed for kinds in self.levels.values() for c in kinds.values())

    @property
    def max_abs_err(self) -> float:
        """Largest absolute error at model level."""
        return max(c.max_abs_err for c in self.levels["model"].values())

    @property
    def max_rel_err(self) -> float:
        """Largest relative error at model level."""
        return max(c.max_rel_err for c in self.levels["model"].values())

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``report.json``."""
        return {
            "levels": {
                level: {kind: asdict(comparison) for kind, comparison in kinds.items()}
                for level, kinds in self.levels.items()
            },
            "reference": self.reference,
            "passed": self.passed,
            "failures": self.failures(),
            "max_abs_err": self.max_abs_err,
            "max_rel_err": self.max_rel_err,
            "seconds": {level: round(s, 3) for level, s in self.seconds.items()},
        }

    def failures(self) -> list[str]:
        """Return one line for each failed comparison, from the kernels up to the model."""
        order = sorted(self.levels, key=LEVELS.index)
        return [
            f"{level}, {kind} input: {comparison.reason}"
            for level in order
            for kind, comparison in self.levels[level].items()
            if not comparison.passed
        ]
