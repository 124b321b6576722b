"""Resizing as sums over constant places: each axis is a gather and a few multiplications.

Coordinates and weights follow PyTorch's CPU kernels (``aten/src/ATen/native/UpSample.h``):
``align_corners`` maps ends to ends, otherwise pixel centres to pixel centres; with antialias the
kernel widens by the scale and its weights are normalised at the border.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

_ATEN = torch.ops.aten

Kernel = Callable[[torch.Tensor], torch.Tensor]


def _linear(t: torch.Tensor) -> torch.Tensor:
    return (1.0 - t.abs()).clamp(min=0.0)


def _cubic(t: torch.Tensor, a: float = -0.5) -> torch.Tensor:
    t = t.abs()
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = (((t - 5) * t + 8) * t - 4) * a
    return torch.where(t < 1, near, torch.where(t < 2, far, 0.0))


def _scale(size: int, out: int, align_corners: bool, given: float | None) -> float:
    if align_corners:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1.0 / given if given is not None and given > 0 else size / out


def _antialiased(
    size: int, out: int, scale: float, kernel: Kernel, support: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Places and weights [out, taps]; made of operators, so that tracing keeps them as constants.

    The centre of pixel i is ``scale (i + 0.5)`` also with ``align_corners``, which changes the
    scale only.
    """
    stretch = max(scale, 1.0)
    reach = support * stretch
    centre = scale * (torch.arange(out, dtype=torch.float64).unsqueeze(1) + 0.5)
    low = torch.floor(centre - reach + 0.5).clamp(min=0)
    high = torch.floor(centre + reach + 0.5).clamp(max=size)
    places = low + torch.arange(math.ceil(reach) * 2 + 1, dtype=torch.float64)
    weights = kernel((places - centre + 0.5) / stretch)
    weights = torch.where(places < high, weights, 0.0)
    total = weights.sum(1, keepdim=True)
    weights = weights / torch.where(total == 0, 1.0, total)
    # Taps without weight stay in the window: a NaN outside of it times zero would be NaN.
    return torch.minimum(places, high - 1).to(torch.int64), weights


def _along(x: torch.Tensor, axis: int, places: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    picked = torch.index_select(x, axis, places.reshape(-1))
    picked = picked.reshape([*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]])
    beside = weights.to(x.dtype).reshape([*weights.shape, *[1] * (x.ndim - axis - 1)])
    return (picked * beside).sum(axis + 1)


def _resize_aa(
    x: torch.Tensor,
    output_size: Any,
    align_corners: bool,
    scales: tuple[float | None, ...],
    kernel: Kernel,
    support: float,
) -> torch.Tensor:
    first = x.ndim - len(output_size)
    for i in reversed(range(len(output_size))):
        size, out = x.shape[first + i], int(output_size[i])
        scale = _scale(size, out, align_corners, scales[i])
        table = _antialiased(size, out, scale, kernel, support)
        x = _along(x, first + i, *table)
    return x


def bilinear_aa(
    x: torch.Tensor,
    output_size: Any,
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> torch.Tensor:
    """Bilinear with antialias."""
    return _resize_aa(x, output_size, align_corners, (scales_h, scales_w), _linear, 1.0)


def bicubic_aa(
    x: torch.Tensor,
    output_size: Any,
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> torch.Tensor:
    """Bicubic with antialias, by Pillow's a = -0.5."""
    return _resize_aa(x, output_size, align_corners, (scales_h, scales_w), _cubic, 2.0)


TABLE = {
    _ATEN._upsample_bilinear2d_aa.default: bilinear_aa,
    _ATEN._upsample_bicubic2d_aa.default: bicubic_aa,
}
