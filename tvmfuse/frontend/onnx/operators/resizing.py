"""Resize, Upsample, GridSample and RoiAlign."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tvmfuse.frontend.onnx.call import Call, Operator, Refusal, axis_in


def _resize(call: Call, *inputs: Any) -> Tensor:
    x = inputs[0]
    if call.version < 11:
        raise Refusal("Resize of opset 10 is not known; convert the model to opset 11")
    axes = [axis_in(a, x.ndim) for a in call.attribute("axes") or range(x.ndim)]
    scales, sizes = call.array(2, "scales", inputs), call.array(3, "sizes", inputs)
    roi = call.array(1, "roi", inputs)
    if sizes is not None and sizes.size:
        extents = [int(n) for n in sizes]
        factors = [n / x.shape[a] for n, a in zip(extents, axes, strict=True)]
        policy = call.attribute("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            one = min(factors) if policy == "not_larger" else max(factors)
            factors = [one] * len(axes)
            extents = [math.floor(one * x.shape[a] + 0.5) for a in axes]
    elif scales is not None and scales.size:
        factors = [float(f) for f in scales]
        extents = [math.floor(x.shape[a] * f) for f, a in zip(factors, axes, strict=True)]
    else:
        raise Refusal("has neither scales nor sizes")
    # Interpolation is a matrix an axis: the same few lines are right for every option.
    for i, axis in enumerate(axes):
        if extents[i] == x.shape[axis] and factors[i] == 1 and not _crops(call):
            continue
        window = None if roi is None or not roi.size else (roi[i], roi[i + len(axes)])
        x = _along(call, x, axis, extents[i], factors[i], window)
    return x


def _crops(call: Call) -> bool:
    return call.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"


def _along(call: Call, x: Tensor, axis: int, size: int, factor: float, window: Any) -> Tensor:
    extent = x.shape[axis]
    at, outside = _coordinates(call, extent, size, factor, window)
    mode = call.attribute("mode", "nearest")
    if mode == "nearest":
        places = np.clip(_nearest(call, at), 0, extent - 1).astype(np.int64)
        y = x.index_select(axis, torch.from_numpy(places))
    elif not x.is_floating_point():
        raise Refusal("interpolates integers, whose rounding no standard says; cast to float first")
    else:
        matrix = torch.from_numpy(_weights(call, mode, at, extent, factor)).to(x.dtype)
        y = torch.matmul(x.movedim(axis, -1), matrix.T).movedim(-1, axis)
    if outside.any():
        value = call.attribute("extrapolation_value", 0.0)
        mask = torch.from_numpy(outside).reshape([-1] + [1] * (x.ndim - axis - 1))
        y = torch.where(mask, torch.full_like(y, value), y)
    return y


def _coordinates(
    call: Call, extent: int, size: int, factor: float, window: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Where each place of the result lies in the input, and which lie outside a crop."""
    mode = call.attribute("coordinate_transformation_mode", "half_pixel")
    place = np.arange(size, dtype=np.float64)
    if mode == "half_pixel":
        at = (place + 0.5) / factor - 0.5
    elif mode == "half_pixel_symmetric":
        adjusted = size / (factor * extent)
        at = extent / 2 * (1 - adjusted) + (place + 0.5) / factor - 0.5
    elif mode == "pytorch_half_pixel":
        at = (place + 0.5) / factor - 0.5 if size > 1 else np.zeros(1)
    elif mode == "align_corners":
        length = factor * extent - 1 if factor * extent != size else size - 1
        at = place * ((extent - 1) / length) if length > 0 else np.zeros(size)
    elif mode == "asymmetric":
        at = place / factor
    elif mode == "tf_crop_and_resize":
        begin, end = map(float, window)
        last = extent - 1
        step = (end - begin) * last / (size - 1) if size > 1 else 0.0
        at = begin * last + place * step if size > 1 else np.array([(begin + end) * last / 2])
        return at, (at < 0) | (at > last)
    else:
        raise Refusal(f"has the coordinate_transformation_mode {mode!r}")
    return at, np.zeros(size, bool)


def _nearest(call: Call, at: np.ndarray) -> np.ndarray:
    mode = call.attribute("nearest_mode", "round_prefer_floor")
    rounded = {
        "round_prefer_floor": lambda: np.ceil(at - 0.5),
        "round_prefer_ceil": lambda: np.floor(at + 0.5),
        "floor": lambda: np.floor(at),
        "ceil": lambda: np.ceil(at),
    }
    if mode not in rounded:
        raise Refusal(f"has the nearest_mode {mode!r}")
    return rounded[mode]()


def _weights(call: Call, mode: str, at: np.ndarray, extent: int, factor: float) -> np.ndarray:
    """The matrix of an interpolation: a row for each place of the result."""
    if mode not in ("linear", "cubic"):
        raise Refusal(f"has the mode {mode!r}; known are nearest, linear and cubic")
    shrink = min(factor, 1.0) if call.attribute("antialias", 0) else 1.0
    reach = (1 if mode == "linear" else 2) / shrink
    matrix = np.zeros((len(at), extent))
    a = call.attribute("cubic_coeff_a", -0.75)
    for row, center in enumerate(at):
        places = np.arange(math.floor(center - reach) - 1, math.ceil(center + reach) + 2)
        distance = np.abs(places - center) * shrink
        w = _linear(distance) if mode == "linear" else _cubic(distance, a)
        inside = (places >= 0) & (places < extent)
        if call.attribute("exclude_outside", 0):
            w = np.where(inside, w, 0.0)
        if w.sum() != 0:
            w = w / w.sum()
        np.add.at(matrix[row], np.clip(places, 0, extent - 1), w)
    return matrix


def _linear(distance: np.ndarray) -> np.ndarray:
    return np.maximum(1 - distance, 0)


def _cubic(d: np.ndarray, a: float) -> np.ndarray:
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _upsample(call: Call, *inputs: Any) -> Tensor:
    x = inputs[0]
    scales = call.setting(1, "scales", inputs)
    old = Call(
        call.op, call.name, call.version,
        {
            "mode": call.attribute("mode", "nearest"), "nearest_mode": "floor",
            "coordinate_transformation_mode": "asymmetric",
        },
    )  # fmt: skip
    for axis, factor in enumerate(scales):
        if factor != 1:
            x = _along(old, x, axis, math.floor(x.shape[axis] * factor), factor, None)
    return x


def _grid_sample(call: Call, x: Tensor, grid: Tensor) -> Tensor:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(
        call.attribute("mode", "linear"), call.attribute("mode", "linear")
    )
    return F.grid_sample(
        x, grid, mode, call.attribute("padding_mode", "zeros"),
        bool(call.attribute("align_corners", 0)),
    )  # fmt: skip


def _affine_grid(call: Call, *inputs: Any) -> Tensor:
    size = call.setting(1, "size", inputs)
    return F.affine_grid(inputs[0], size, bool(call.attribute("align_corners", 0)))


OPERATORS: dict[str, Operator] = {
    "AffineGrid": _affine_grid, "GridSample": _grid_sample, "Resize": _resize,
    "Upsample": _upsample,
}  # fmt: skip
