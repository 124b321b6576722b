"""Values between the elements of planes, where boxes or offsets say: RoiAlign and DeformConv."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from tvmfuse.frontend.onnx.call import Call, Operator, Refusal
from tvmfuse.frontend.onnx.operators.windows import window_of


def _take(planes: Tensor, row: Tensor, column: Tensor, width: int) -> Tensor:
    """Elements of flat planes [N, C, H·W] at places [N, P] inside of them, as [N, C, P]."""
    place = (row * width + column).long().unsqueeze(1)
    return torch.gather(planes, 2, place.expand(-1, planes.shape[1], -1))


def _between(planes: Tensor, extents: tuple[int, int], row: Tensor, column: Tensor) -> Tensor:
    """Bilinear values at places [N, P]; all outside of the planes is zero."""
    height, width = extents
    total: Tensor | None = None
    for down in (0, 1):
        for right in (0, 1):
            r, c = torch.floor(row) + down, torch.floor(column) + right
            weight = (1 - (row - r).abs()) * (1 - (column - c).abs())
            inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
            weight = torch.where(inside, weight, torch.zeros_like(weight))
            corner = _take(planes, r.clamp(0, height - 1), c.clamp(0, width - 1), width)
            part = corner * weight.unsqueeze(1)
            total = part if total is None else total + part
    assert total is not None
    return total


def _deform_conv(
    call: Call, x: Tensor, weight: Tensor, offset: Tensor, bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    if x.ndim != 4:
        raise Refusal(f"convolves over {x.ndim - 2} axes; known are 2")
    n, channels, height, width = x.shape
    kernel, out = list(weight.shape[2:]), list(offset.shape[2:])
    window, taps = window_of(call, kernel, [height, width]), math.prod(kernel)
    sets, groups = call.attribute("offset_group", 1), call.attribute("group", 1)
    moved = offset.reshape(n, sets, taps, 2, *out)
    begin = [
        torch.arange(k)[:, None] * d + torch.arange(o)[None] * s - b
        for k, o, s, d, b in zip(kernel, out, window.stride, window.dilation, window.before,
                                 strict=True)
    ]  # fmt: skip
    rows = begin[0].to(x.dtype).reshape(kernel[0], 1, out[0], 1).expand(*kernel, *out)
    columns = begin[1].to(x.dtype).reshape(1, kernel[1], 1, out[1]).expand(*kernel, *out)
    row = moved[:, :, :, 0] + rows.reshape(taps, *out)
    column = moved[:, :, :, 1] + columns.reshape(taps, *out)
    planes = x.reshape(n * sets, channels // sets, height * width)
    places = (t.reshape(n * sets, -1) for t in (row, column))
    found = _between(planes, (height, width), *places)
    found = found.reshape(n, sets, channels // sets, taps, -1)
    if mask is not None:
        found = found * mask.reshape(n, sets, 1, taps, -1)
    found = found.reshape(n, groups, channels // groups * taps, -1)
    sums = torch.matmul(weight.reshape(groups, weight.shape[0] // groups, -1), found)
    result = sums.reshape(n, weight.shape[0], *out)
    return result if bias is None else result + bias.reshape(1, -1, 1, 1)


def _roi_align(call: Call, x: Tensor, rois: Tensor, batch: Tensor) -> Tensor:
    samples = call.attribute("sampling_ratio", 0)
    if samples <= 0:
        raise Refusal("without sampling_ratio its work depends on the sizes of the boxes")
    bins = [call.attribute("output_height", 1), call.attribute("output_width", 1)]
    default = "half_pixel" if call.version >= 16 else "output_half_pixel"
    half = call.attribute("coordinate_transformation_mode", default) == "half_pixel"
    edges = rois * call.attribute("spatial_scale", 1.0) - (0.5 if half else 0.0)
    extents, lines = list(x.shape[2:]), []
    for axis in (0, 1):
        first, last = edges[:, 1 - axis], edges[:, 3 - axis]
        size = last - first if half else torch.clamp(last - first, min=1.0)
        step = (torch.arange(bins[axis] * samples).to(x.dtype) + 0.5) / samples
        at = first[:, None] + step * (size / bins[axis])[:, None]
        lines.append(_line(at, extents[axis]))
    planes = x.index_select(0, batch.long()).flatten(2)
    corners = []
    for (row, down), (column, right) in itertools.product(*lines):
        at = torch.broadcast_tensors(row[:, :, None], column[:, None])
        found = _take(planes, at[0].flatten(1), at[1].flatten(1), extents[1])
        corners.append(found * (down[:, :, None] * right[:, None]).flatten(1).unsqueeze(1))
    shape = [*corners[0].shape[:2], bins[0], samples, bins[1], samples]
    if call.attribute("mode", "avg") == "avg":
        total = corners[0] + corners[1] + corners[2] + corners[3]
        return total.reshape(shape).mean((3, 5))
    largest = torch.stack(corners).amax(0)
    return largest.reshape(shape).amax((3, 5))


def _line(at: Tensor, extent: int) -> list[tuple[Tensor, Tensor]]:
    """The two elements that each place along an axis lies between, with their weights."""
    outside = (at < -1) | (at > extent)
    at = at.clamp(0, extent - 1)
    low = torch.floor(at)
    high = torch.clamp(low + 1, max=extent - 1)
    weights = (1 - (at - low), at - low)
    return [
        (place, torch.where(outside, torch.zeros_like(w), w))
        for place, w in zip((low, high), weights, strict=True)
    ]


OPERATORS: dict[str, Operator] = {"DeformConv": _deform_conv, "RoiAlign": _roi_align}
