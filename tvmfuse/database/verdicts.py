"""Verdicts on fused groups that were measured against their parts; one line each in the log."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class FusionVerdict:
    """One kernel against the kernels of its operators, measured in turns.

    Parameters
    ----------
    group
        Structural hash of the unscheduled group, as sixteen hexadecimal digits.
    rule
        The group's equation.
    parts
        How many kernels its operators are.
    fused
        Whether it stays one kernel.
    fused_us, parts_us
        Best of some rounds for the one kernel, and for all parts one behind the other.
    asked
        Why it was measured.
    intermediate_bytes
        Of the tensors that only the parts write and read.
    spills, parts_spills
        Instructions in the compiled code that store a vector register on the stack; None where
        the code was not looked at.
    failure
        Why the one kernel could not be measured; empty when it was.
    """

    group: str
    rule: str
    parts: int
    fused: bool
    fused_us: float | None
    parts_us: float
    asked: str
    intermediate_bytes: int
    spills: int | None = None
    parts_spills: int | None = None
    failure: str = ""

    @property
    def said(self) -> str:
        """What was found, with the evidence, in one line."""
        parts = f"{self.parts_us:.1f} us in its {self.parts} parts"
        if self.fused_us is None:
            return f"measured: {self.failure} in one kernel, {parts}"
        text = f"measured: {self.fused_us:.1f} us in one kernel, {parts}"
        if self.spills is not None:
            text += f"; its code spills {self.spills} vector registers to the stack"
            text += f" (its parts: {self.parts_spills})" if self.parts_spills is not None else ""
        return f"{text}; {self.intermediate_bytes} bytes of intermediates"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def parse_verdict(line: bytes) -> FusionVerdict:
    """Read one line; raises ValueError."""
    data = json.loads(line)
    wanted = {f.name for f in fields(FusionVerdict)}
    if not isinstance(data, dict) or not wanted >= data.keys():
        raise ValueError("no verdict")
    try:
        found = FusionVerdict(**data)
    except TypeError as error:
        raise ValueError(f"no verdict: {error}") from error
    times = [found.parts_us] if found.fused_us is None else [found.parts_us, found.fused_us]
    positive = all(isinstance(us, (int, float)) and us > 0 for us in times)
    if not positive or not isinstance(found.group, str) or not isinstance(found.fused, bool):
        raise ValueError("bad verdict")
    return found
