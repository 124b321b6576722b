"""Pooling and unfolding by index vectors: each axis is read at constant places, with a mask.

Places and masks are constants of the compiled module, so that an axis costs one fused gather and
reduction. Used where TVM's own pooling lacks the option.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

_ATEN = torch.ops.aten


def _spread(value: Any, rank: int, default: Any = None) -> list[int]:
    if value is None or (not isinstance(value, int) and len(value) == 0):
        value = default
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _windows(
    size: int, kernel: int, stride: int, pad: int, dilation: int, ceil_mode: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Places [out, kernel] and which of them lie inside."""
    reach = dilation * (kernel - 1) + 1
    span = size + 2 * pad - reach
    out = (-(-span // stride) if ceil_mode else span // stride) + 1
    if ceil_mode and (out - 1) * stride >= size + pad:
        out -= 1  # the last window has to begin inside
    begin = torch.arange(out) * stride - pad
    place = begin[:, None] + torch.arange(kernel)[None] * dilation
    return place, (place >= 0) & (place < size)


def _adaptive(size: int, out: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for windows from floor(i n / m) to ceil((i + 1) n / m)."""
    each = torch.arange(out)
    begin, end = each * size // out, ((each + 1) * size + out - 1) // out
    longest = max((-(-(i + 1) * size // out) - i * size // out for i in range(out)), default=0)
    place = begin[:, None] + torch.arange(longest)[None]
    return place, place < end[:, None]


def _take(x: torch.Tensor, axis: int, place: torch.Tensor) -> torch.Tensor:
    """``x`` with ``axis`` replaced by [out, kernel]."""
    picked = torch.index_select(x, axis, place.clamp(0, x.shape[axis] - 1).reshape(-1))
    return picked.reshape([*x.shape[:axis], *place.shape, *x.shape[axis + 1 :]])


def _beside(mask: torch.Tensor, rank: int, axis: int) -> torch.Tensor:
    return mask.reshape([*[1] * axis, *mask.shape, *[1] * (rank - axis - 1)])


def max_windows(
    x: torch.Tensor, windows: list[tuple[torch.Tensor, torch.Tensor]], spatial: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Maxima over windows of the last axes, and their flat places among ``spatial``."""
    rank, first = x.ndim, x.ndim - len(windows)
    value = x
    flat = torch.arange(_product(spatial)).reshape(spatial).expand(x.shape)
    for axis in reversed(range(first, rank)):
        place, inside = windows[axis - first]
        mask = _beside(inside, value.ndim, axis)
        low = float("-inf") if x.is_floating_point() else torch.iinfo(x.dtype).min
        candidates = torch.where(mask, _take(value, axis, place), low)
        best = torch.amax(candidates, axis + 1)
        hit = candidates == best.unsqueeze(axis + 1)
        if x.is_floating_point():
            hit = hit | (torch.isnan(candidates))
        hit = hit & mask
        # The axes behind are decided already: the first row with the maximum holds the place.
        order = torch.arange(place.shape[1]).reshape([-1, *[1] * (rank - axis - 1)])
        pick = torch.amin(torch.where(hit, order, place.shape[1] - 1), axis + 1, True)
        flat = torch.gather(_take(flat, axis, place), axis + 1, pick).squeeze(axis + 1)
        value = best
    return value, flat


def _product(extents: list[int]) -> int:
    result = 1
    for extent in extents:
        result *= extent
    return result


def max_pool_with_indices(
    x: torch.Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    *,
    rank: int = 2,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Maxima over windows and their places."""
    kernel = _spread(kernel_size, rank)
    steps, pads = _spread(stride, rank, kernel), _spread(padding, rank)
    gaps, spatial = _spread(dilation, rank), list(x.shape[-rank:])
    windows = [
        _windows(*each, ceil_mode) for each in zip(spatial, kernel, steps, pads, gaps, strict=True)
    ]
    return max_windows(x, windows, spatial)


def adaptive_max_pool(x: torch.Tensor, output_size: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Maxima over uneven windows, and their places."""
    sizes = [output_size] if isinstance(output_size, int) else list(output_size)
    spatial = list(x.shape[-len(sizes) :])
    windows = [_adaptive(n, m) for n, m in zip(spatial, sizes, strict=True)]
    return max_windows(x, windows, spatial)


def adaptive_mean(x: torch.Tensor, output_size: Any) -> torch.Tensor:
    """Means over uneven windows of the last axis."""
    out = output_size if isinstance(output_size, int) else output_size[0]
    place, inside = _adaptive(x.shape[-1], out)
    taken = torch.where(inside, _take(x, x.ndim - 1, place), 0.0)
    return taken.sum(-1) / inside.sum(1).to(x.dtype)


def avg_pool(
    x: torch.Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    rank: int,
) -> torch.Tensor:
    """Sums over windows by one divisor, or by the windows' sizes with or without padding."""
    kernel = _spread(kernel_size, rank)
    steps, pads = _spread(stride, rank, kernel), _spread(padding, rank)
    first = x.ndim - rank
    total, count = x, torch.ones([])
    for axis in reversed(range(first, x.ndim)):
        i, size = axis - first, x.shape[axis]
        place, inside = _windows(size, kernel[i], steps[i], pads[i], 1, ceil_mode)
        taken = _take(total, axis, place)
        total = torch.where(_beside(inside, total.ndim, axis), taken, 0).sum(axis + 1)
        counted = place < size + pads[i] if count_include_pad else inside
        each = counted.sum(1).to(x.dtype)
        count = each.reshape([-1, *[1] * count.ndim]) * count.unsqueeze(0)
    divisor = count.squeeze() if divisor_override is None else divisor_override
    if x.is_floating_point():
        return total / divisor
    return torch.div(total, divisor, rounding_mode="trunc").to(x.dtype)


def avg_pool2d(x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """TVM's pooling, but with a divisor of the user's own."""
    if _divisor(args, options) is None:
        return NotImplemented
    return avg_pool(x, *args, **options, rank=2)


def avg_pool3d(x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """The same in three dimensions."""
    if _divisor(args, options) is None:
        return NotImplemented
    return avg_pool(x, *args, **options, rank=3)


def _divisor(args: tuple[Any, ...], options: dict[str, Any]) -> int | None:
    return args[5] if len(args) > 5 else options.get("divisor_override")


def unfold(x: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    """Sliding slices of one axis, put last."""
    if x.ndim == 0:
        return x.reshape(1)[:size]
    axis = dimension % x.ndim
    starts = torch.arange((x.shape[axis] - size) // step + 1) * step
    place = starts[:, None] + torch.arange(size)[None]
    return _take(x, axis, place).movedim(axis + 1, -1)


def pieces(x: torch.Tensor, sizes: list[int], dim: int = 0) -> list[torch.Tensor]:
    """Slices, which fuse; TVM's own split of one piece is no tuple."""
    begins = [sum(sizes[:i]) for i in range(len(sizes))]
    return [x.narrow(dim, b, n) for b, n in zip(begins, sizes, strict=True)]


TABLE = {
    _ATEN.split_with_sizes.default: pieces,
    _ATEN.max_pool2d_with_indices.default: max_pool_with_indices,
    _ATEN.max_pool3d_with_indices.default: functools.partial(max_pool_with_indices, rank=3),
    _ATEN.adaptive_max_pool2d.default: adaptive_max_pool,
    _ATEN.adaptive_max_pool3d.default: adaptive_max_pool,
    _ATEN.avg_pool2d.default: avg_pool2d,
    _ATEN.avg_pool3d.default: avg_pool3d,
    _ATEN.adaptive_avg_pool1d.default: adaptive_mean,
    _ATEN.unfold.default: unfold,
}
