"""Scans in log2(n) steps: in each, every element takes in the one 1, 2, 4 … places before it."""

from __future__ import annotations

from collections.abc import Callable

import torch

_ATEN = torch.ops.aten


def _shifted(x: torch.Tensor, dim: int, by: int) -> torch.Tensor:
    """``x`` without its last ``by`` places along ``dim``."""
    return x.narrow(dim, 0, x.shape[dim] - by)


def _steps(extent: int) -> list[int]:
    found, step = [], 1
    while step < extent:
        found.append(step)
        step *= 2
    return found


def _cumulative_extreme(
    x: torch.Tensor, dim: int, wins: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and places so far; the later of equal values counts, and NaN stays."""
    shape = [1] * x.ndim
    if x.ndim:
        shape[dim] = x.shape[dim]
    count = x.shape[dim] if x.ndim else 1
    places = torch.arange(count, device=x.device).reshape(shape).expand(x.shape)
    if x.ndim == 0:
        return x.clone(), places.clone()
    for by in _steps(count):
        head = [t.narrow(dim, 0, by) for t in (x, places)]
        mine = [t.narrow(dim, by, count - by) for t in (x, places)]
        before = [_shifted(t, dim, by) for t in (x, places)]
        keep = wins(mine[0], before[0])
        if x.is_floating_point():
            keep = (keep & ~(torch.isnan(before[0]))) | (torch.isnan(mine[0]))
        rest = [torch.where(keep, m, b) for m, b in zip(mine, before, strict=True)]
        x, places = (torch.cat(pair, dim) for pair in zip(head, rest, strict=True))
    return x, places


def cummax(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest value so far and its last place."""
    return _cumulative_extreme(x, dim, lambda mine, before: mine >= before)


def cummin(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest value so far and its last place."""
    return _cumulative_extreme(x, dim, lambda mine, before: mine <= before)


def logcumsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    """``log(cumsum(exp(x)))`` without overflow."""
    if x.ndim == 0:
        return x.clone()
    for by in _steps(x.shape[dim]):
        head = x.narrow(dim, 0, by)
        mine, before = x.narrow(dim, by, x.shape[dim] - by), _shifted(x, dim, by)
        high, low = torch.maximum(mine, before), torch.minimum(mine, before)
        both = high + torch.log1p(torch.exp(low - high))
        x = torch.cat([head, torch.where(high == low, high + 0.6931471805599453, both)], dim)
    return x


TABLE = {
    _ATEN.cummax.default: cummax,
    _ATEN.cummin.default: cummin,
    _ATEN.logcumsumexp.default: logcumsumexp,
}
