"""What rounding alone does to a layer: eager PyTorch from the values that the artifact computed.

A sigmoid behind a sum of terms in the thousands is ill-conditioned: the last digit of the sum is
the fifth of the result, whoever adds it up. Of one such sum eager's error is a matter of chance
(with a thousand channels of which few are near zero, two orders of summation were more than a
factor of two apart in 39 % of the cases, and in 1 % with the seven beside them), so that the
largest of several roundings counts: as the values are, and with the last digit of each moved up or
down.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tvmfuse.precision.taps import run_part

_MOVED = 7  # runs with the last digits moved


class Rounding:
    """Eager in the program's own types, going on from values that another run has computed."""

    def __init__(self, program: Any, inputs: Sequence[torch.Tensor]) -> None:
        self._program, self._inputs = program, inputs
        self._known: dict[fx.Node, torch.Tensor] = {}

    def goes_on_from(self, node: fx.Node, value: torch.Tensor) -> None:
        """Take this value for the node's in what follows."""
        self._known[node] = value

    def error(self, node: fx.Node, exact: torch.Tensor) -> float:
        """Largest error of a node against its float64 value; 0 where eager cannot run it."""
        largest = 0.0
        generator = torch.Generator().manual_seed(0)
        for run in range(1 + _MOVED):
            known = functools.partial(self._value, generator if run else None)
            try:
                value = run_part(self._program, self._inputs, node, known)
            except Exception:  # of any kind: PyTorch lacks some operators in half precision
                break
            both = value.isfinite() & exact.isfinite()
            if bool(both.any()):
                largest = max(largest, float((value.double() - exact)[both].abs().max()))
        return largest

    def _value(self, moving: torch.Generator | None, node: fx.Node) -> torch.Tensor | None:
        value = self._known.get(node)
        return value if value is None or moving is None else _moved(value, moving)


def _moved(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The value with the last digit of each element one up or down."""
    upwards = torch.rand(value.shape, generator=generator) < 0.5
    to = torch.where(upwards, torch.inf, -torch.inf).to(value.dtype)
    moved = torch.nextafter(value, to)
    return torch.where(moved.isfinite(), moved, value)
