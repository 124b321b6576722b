"""What rounding alone does: eager PyTorch where the last digits of its inputs are moved.

A sigmoid behind a sum of terms in the thousands is ill-conditioned: the last digit of the sum is
the fifth of the result, whoever adds it up. Of one such sum eager's error is a matter of chance
(with a thousand channels of which few are near zero, another order was more than twice as far off
in 39 % of the cases, and in 1 % than the largest of eight), and a network of such gates carries it
to the outputs. So the largest of several roundings counts: as the values are, and with the last
digit of each moved up or down.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tvmfuse.precision.taps import run_part

MOVED = 7  # runs with the last digits moved


class Rounding:
    """Eager in the program's own types, going on from values that another run has computed."""

    def __init__(self, program: Any, inputs: Sequence[torch.Tensor]) -> None:
        self._program, self._inputs = program, inputs
        self._known: dict[fx.Node, torch.Tensor] = {}

    def goes_on_from(self, node: fx.Node, value: torch.Tensor) -> None:
        """Take this value for the node's in what follows."""
        self._known[node] = value

    def errors(self, node: fx.Node, exact: torch.Tensor) -> tuple[float, float]:
        """Largest and root mean square error of a node against float64, each the worst of all runs.

        Both are 0 where eager cannot run it.
        """
        largest, spread = 0.0, 0.0
        generator = torch.Generator().manual_seed(0)
        for run in range(1 + MOVED):
            known = functools.partial(self._value, generator if run else None)
            try:
                value = run_part(self._program, self._inputs, node, known)
            except Exception:  # of any kind: PyTorch lacks some operators in half precision
                break
            both = value.isfinite() & exact.isfinite()
            if bool(both.any()):
                off = (value.double() - exact)[both]
                largest = max(largest, float(off.abs().max()))
                spread = max(spread, float(off.square().mean().sqrt()))
        return largest, spread

    def _value(self, moving: torch.Generator | None, node: fx.Node) -> torch.Tensor | None:
        value = self._known.get(node)
        return value if value is None or moving is None else moved(value, moving)


def moved(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The value with the last digit of each element one up or down; 0 and integers stay."""
    if not value.is_floating_point():
        return value
    upwards = torch.rand(value.shape, generator=generator) < 0.5
    to = torch.where(upwards, torch.inf, -torch.inf).to(value.dtype)
    other = torch.nextafter(value, to)
    # Nobody rounds 0, and beside it are other signs.
    rounded = value.isfinite() & (value != 0)
    return torch.where(rounded & other.isfinite(), other, value)
