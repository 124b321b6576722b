"""Convolutions in the forms that TVM takes: batched, with numbers as padding."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional as F

_ATEN = torch.ops.aten


def _each(value: Any, rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def named_padding(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: str = "valid",
    dilation: Any = 1,
    groups: int = 1,
    *,
    rank: int,
) -> torch.Tensor:
    """``"same"`` and ``"valid"``; an odd sum of padding has its larger half behind."""
    pads: list[int] = []
    if padding == "same":
        for size, gap in zip(weight.shape[2:], _each(dilation, rank), strict=True):
            total = gap * (size - 1)
            pads = [total // 2, total - total // 2, *pads]
    x = F.pad(x, pads) if any(pads) else x
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return convolve(x, weight, bias, stride, 0, dilation, groups)


def one_sample(x: torch.Tensor, weight: torch.Tensor, *args: Any, rank: int) -> torch.Tensor:
    """A sample without a batch is a batch of one."""
    if x.ndim == rank + 2:
        return NotImplemented
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return convolve(x.unsqueeze(0), weight, *args).squeeze(0)


def transposed(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    is_transposed: bool,
    output_padding: Any,
    groups: int,
) -> torch.Tensor:
    """A transposed convolution that TVM lacks, as one over the input with zeros between.

    TVM's own serves up to two dimensions with an output padding below the stride.
    """
    rank = weight.ndim - 2
    strides, extra = _each(stride, rank), _each(output_padding, rank)
    known = rank < 3 and all(e < s for e, s in zip(extra, strides, strict=True))
    if not is_transposed or known:
        return NotImplemented
    if x.ndim == rank + 1:
        options = (stride, padding, dilation, True, output_padding, groups)
        return transposed(x.unsqueeze(0), weight, bias, *options).squeeze(0)
    for axis, step in enumerate(strides, 2):
        x = _with_zeros(x, axis, step)
    pads: list[int] = []
    geometry = zip(
        weight.shape[2:], _each(dilation, rank), _each(padding, rank), extra, strict=True
    )
    for size, gap, pad, more in geometry:
        pads = [gap * (size - 1) - pad, gap * (size - 1) - pad + more, *pads]
    flipped = weight.flip(list(range(2, weight.ndim)))
    parts = flipped.reshape(groups, -1, *flipped.shape[1:]).transpose(1, 2)
    kernel = parts.reshape(-1, *parts.shape[2:])
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return convolve(F.pad(x, pads), kernel, bias, 1, 0, dilation, groups)


def _with_zeros(x: torch.Tensor, axis: int, step: int) -> torch.Tensor:
    """``step - 1`` zeros between neighbours along ``axis``."""
    if step == 1:
        return x
    size = x.shape[axis]
    wide = torch.stack([x, *[torch.zeros_like(x)] * (step - 1)], axis + 1)
    shape = [*x.shape[:axis], size * step, *x.shape[axis + 1 :]]
    return wide.reshape(shape).narrow(axis, 0, (size - 1) * step + 1)


def trilinear(
    one: torch.Tensor,
    two: torch.Tensor,
    three: torch.Tensor,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """The product behind ``nn.Bilinear``, as one fused sum."""
    factors = []
    for factor, axes in zip((one, two, three), (expand1, expand2, expand3), strict=True):
        for axis in axes:
            factor = factor.unsqueeze(axis)
        factors.append(factor)
    return (factors[0] * factors[1] * factors[2]).sum(sumdim)


TABLE = {
    **{
        getattr(_ATEN, f"conv{rank}d").padding: functools.partial(named_padding, rank=rank)
        for rank in (1, 2, 3)
    },
    **{
        getattr(_ATEN, f"conv{rank}d").default: functools.partial(one_sample, rank=rank)
        for rank in (1, 2, 3)
    },
    _ATEN.convolution.default: transposed,
    _ATEN._trilinear.default: trilinear,
}
