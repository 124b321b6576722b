"""Verdicts: a refusal is a value with a reason and a culprit, never an exception."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Yes, or no with the reason and the culprit.

    Parameters
    ----------
    ok
        Whether the candidate is accepted.
    reason
        Why not; empty for yes.
    culprit
        Name of the operator, buffer or limit that decided.
    """

    ok: bool
    reason: str = ""
    culprit: str = ""

    def __bool__(self) -> bool:
        return self.ok


YES = Verdict(True)


def no(reason: str, culprit: str = "") -> Verdict:
    """Build a refusal."""
    return Verdict(False, reason, culprit)
