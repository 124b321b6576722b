"""Reductions that choose: extrema with their places, order statistics, and logical ones.

PyTorch's rules: NaN wins every comparison, and of equal values the first one counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

_ATEN = torch.ops.aten


def _takes_scalars(function: Callable[..., Any]) -> Callable[..., Any]:
    """A tensor without dimensions is one of [1], and so are the results without theirs."""

    @functools.wraps(function)
    def wide(x: torch.Tensor, *args: Any, **options: Any) -> Any:
        if x.ndim:
            return function(x, *args, **options)
        results = function(x.reshape(1), *args, **options)
        if results is NotImplemented:
            return results
        return pytree.tree_map(lambda r: r.reshape(()), results)

    return wide


@_takes_scalars
def argmax(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """First place of the maximum."""
    return _place(x, dim, keepdim, torch.amax)


@_takes_scalars
def argmin(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """First place of the minimum."""
    return _place(x, dim, keepdim, torch.amin)


def _place(x: torch.Tensor, dim: int | None, keepdim: bool, extreme: Any) -> torch.Tensor:
    if dim is None:
        flat = _first(x.reshape(-1), extreme(x.reshape(-1), 0, True), 0, False)
        return flat.reshape([1] * x.ndim) if keepdim else flat
    return _first(x, extreme(x, dim, True), dim, keepdim)


def _first(x: torch.Tensor, value: torch.Tensor, dim: int, keepdim: bool) -> torch.Tensor:
    """First place along ``dim`` where ``x`` is ``value``."""
    hit = x == value
    if x.is_floating_point():
        hit = hit | torch.isnan(x)
    shape = [1] * x.ndim
    shape[dim] = x.shape[dim]
    places = torch.arange(x.shape[dim], device=x.device).reshape(shape)
    return torch.amin(torch.where(hit, places, x.shape[dim]), dim, keepdim)


@_takes_scalars
def max_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Maximum and its first place."""
    return torch.amax(x, dim, keepdim), argmax(x, dim, keepdim)


@_takes_scalars
def min_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Minimum and its first place."""
    return torch.amin(x, dim, keepdim), argmin(x, dim, keepdim)


@_takes_scalars
def any_dims(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
    """Whether any element differs from zero; NaN does."""
    return _logical(x, dim, keepdim, torch.amax)


@_takes_scalars
def all_dims(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
    """Whether all elements differ from zero."""
    return _logical(x, dim, keepdim, torch.amin)


def _logical(x: torch.Tensor, dim: Any, keepdim: bool, extreme: Any) -> torch.Tensor:
    ones = (x if x.dtype == torch.bool else x != 0).to(torch.int32)
    if dim is None:
        dims = list(range(x.ndim))
    else:
        dims = [dim] if isinstance(dim, int) else list(dim) or list(range(x.ndim))
    if any(x.shape[d] == 0 for d in dims):  # an extremum of nothing has no value
        counted = ones if extreme is torch.amax else 1 - ones
        found = torch.sum(counted, dims, keepdim)
        result = found > 0 if extreme is torch.amax else found == 0
    else:
        result = (extreme(ones, dims, keepdim) if dims else ones) > 0
    return result.to(torch.uint8) if x.dtype == torch.uint8 else result


def var_mean(
    x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Variance and mean."""
    variance = _ATEN.var.correction(x, dim, correction=correction, keepdim=keepdim)
    dims = list(range(x.ndim)) if dim is None else dim
    return variance, torch.mean(x, dims, keepdim)


@_takes_scalars
def kthvalue(
    x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``k``-th smallest value and a place of it."""
    if not x.is_floating_point():
        return NotImplemented  # of equal integers PyTorch names a place of its own
    values, places = torch.sort(x, stable=True, dim=dim)
    picked = [t.select(dim, k - 1) for t in (values, places)]
    if keepdim:
        picked = [t.unsqueeze(dim) for t in picked]
    return picked[0], picked[1]


@_takes_scalars
def median_dim(
    x: torch.Tensor, dim: int, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower median and a place of it; NaN if there is one."""
    if not x.is_floating_point():
        return NotImplemented
    value, place = kthvalue(x, (x.shape[dim] + 1) // 2, dim, True)
    if x.is_floating_point():
        lost = torch.amax(torch.isnan(x).to(torch.int32), dim, True) > 0
        place = torch.where(lost, _first(x, value, dim, True), place)
        value = torch.where(lost, float("nan"), value)
    if keepdim:
        return value, place
    return value.squeeze(dim), place.squeeze(dim)


def median(x: torch.Tensor) -> torch.Tensor:
    """Lower median of all elements."""
    flat = x.reshape(-1)
    if not x.is_floating_point():
        return torch.sort(flat)[0][(flat.shape[0] - 1) // 2]
    return median_dim(flat, 0)[0]


@_takes_scalars
def nanmedian_dim(
    x: torch.Tensor, dim: int, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower median of the numbers and a place of it."""
    if not x.is_floating_point():
        return NotImplemented
    number = ~torch.isnan(x)
    values, places = torch.sort(torch.where(number, x, float("inf")), stable=True, dim=dim)
    count = number.to(torch.int64).sum(dim, keepdim=True)
    middle = ((count - 1) // 2).clamp(min=0)
    value, place = (torch.gather(t, dim, middle) for t in (values, places))
    value = torch.where(count == 0, float("nan"), value)
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def nanmedian(x: torch.Tensor) -> torch.Tensor:
    """The same of all elements."""
    if not x.is_floating_point():
        return median(x)
    return nanmedian_dim(x.reshape(-1), 0)[0]


def largest(x: torch.Tensor) -> torch.Tensor:
    """Maximum of all elements."""
    return torch.amax(x, list(range(x.ndim)))


def smallest(x: torch.Tensor) -> torch.Tensor:
    """Minimum of all elements."""
    return torch.amin(x, list(range(x.ndim)))


def count_nonzero(x: torch.Tensor, dim: Any) -> torch.Tensor:
    """How many elements differ from zero."""
    return (x != 0).to(torch.int64).sum(dim)


TABLE = {
    _ATEN.argmax.default: argmax,
    _ATEN.argmin.default: argmin,
    _ATEN.max.dim: max_dim,
    _ATEN.min.dim: min_dim,
    _ATEN.any.default: any_dims,
    _ATEN.any.dim: any_dims,
    _ATEN.any.dims: any_dims,
    _ATEN.all.default: all_dims,
    _ATEN.all.dim: all_dims,
    _ATEN.all.dims: all_dims,
    _ATEN.var_mean.correction: var_mean,
    _ATEN.kthvalue.default: kthvalue,
    _ATEN.median.dim: median_dim,
    _ATEN.median.default: median,
    _ATEN.nanmedian.dim: nanmedian_dim,
    _ATEN.nanmedian.default: nanmedian,
    _ATEN.max.default: largest,
    _ATEN.min.default: smallest,
    _ATEN.count_nonzero.dim_IntList: count_nonzero,
}
