"""Pooling."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tvmfuse.frontend.onnx.call import Call, Operator, Refusal
from tvmfuse.frontend.onnx.operators.windows import Window, padded, window_of

_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _windows(call: Call, x: Tensor) -> Window:
    window = window_of(call, list(call.attribute("kernel_shape")), list(x.shape[2:]))
    if len(window.kernel) not in _MAX:
        raise Refusal(f"pools over {len(window.kernel)} axes; known are 1, 2 and 3")
    return window


def _ceiled(call: Call, x: Tensor, window: Window) -> list[int]:
    """How far beyond the end ``ceil_mode`` lets the last window reach, an axis."""
    if not call.attribute("ceil_mode", 0):
        return [0] * len(window.kernel)
    more = []
    for n, k, s, d, b, a in zip(x.shape[2:], *window, strict=True):
        reach = (k - 1) * d + 1
        length = n + b + a
        count = -(-(length - reach) // s) + 1
        if (count - 1) * s >= n + b:  # a window must begin inside the input or its padding before
            count -= 1
        more.append(max((count - 1) * s + reach - length, 0))
    return more


def _lowest(x: Tensor) -> Any:
    return float("-inf") if x.is_floating_point() else torch.iinfo(x.dtype).min


def _max_pool(call: Call, x: Tensor) -> Any:
    window = _windows(call, x)
    more = _ceiled(call, x, window)
    pool = _MAX[len(window.kernel)]
    small = all(2 * b <= k for b, k in zip(window.before, window.kernel, strict=True))
    if 1 in call.wanted:
        return _max_pool_with_places(call, x, window, more)
    if window.symmetric and small and not any(more):
        return pool(x, window.kernel, window.stride, window.before, window.dilation)
    after = [a + m for a, m in zip(window.after, more, strict=True)]
    wide = padded(x, window.before, after, _lowest(x))
    return pool(wide, window.kernel, window.stride, 0, window.dilation)


def _max_pool_with_places(call: Call, x: Tensor, window: Window, more: list[int]) -> Any:
    after = [a + m for a, m in zip(window.after, more, strict=True)]
    wide = padded(x, window.before, after, _lowest(x))
    pool = _MAX[len(window.kernel)]
    values, places = pool(
        wide, window.kernel, window.stride, 0, window.dilation, return_indices=True
    )
    # Places are counted in the padded plane; ONNX counts them in the whole unpadded tensor.
    coordinates: list[Tensor] = []
    rest = places
    for extent in reversed(wide.shape[2:]):
        coordinates.insert(0, rest % extent)
        rest = rest // extent
    extents = list(x.shape[2:])
    axes = list(range(len(extents)))
    column = call.attribute("storage_order", 0)
    flat = torch.zeros_like(places)
    for axis in axes[::-1] if column else axes:
        flat = flat * extents[axis] + (coordinates[axis] - window.before[axis])
    planes = torch.arange(x.shape[0] * x.shape[1]) * math.prod(extents)
    return values, flat + planes.reshape([*x.shape[:2], *[1] * len(extents)])


def _average_pool(call: Call, x: Tensor) -> Tensor:
    window = _windows(call, x)
    more = _ceiled(call, x, window)
    counted = bool(call.attribute("count_include_pad", 0))
    pool = _AVERAGE[len(window.kernel)]
    plain = window.symmetric and not any(more) and set(window.dilation) == {1}
    small = all(2 * b <= k for b, k in zip(window.before, window.kernel, strict=True))
    if plain and small:
        return pool(x, window.kernel, window.stride, window.before, False, counted)
    sums = _sums(x, window, more)
    ones = torch.ones_like(x[:1, :1])
    if counted:
        wide = padded(ones, window.before, window.after, 1.0)
        none = [0] * len(more)
        counts = _sums(wide, window._replace(before=none, after=none), more)
    else:
        counts = _sums(ones, window, more)
    return sums / counts


def _sums(x: Tensor, window: Window, more: list[int]) -> Tensor:
    """Sums over the windows: each place of the kernel is a strided view."""
    after = [a + m for a, m in zip(window.after, more, strict=True)]
    wide = padded(x, window.before, after, 0.0)
    for axis, (k, s, d) in enumerate(
        zip(window.kernel, window.stride, window.dilation, strict=True), 2
    ):
        count = (wide.shape[axis] - (k - 1) * d - 1) // s + 1
        index = [slice(None)] * axis
        reach = (count - 1) * s + 1
        taps = [slice(p * d, p * d + reach, s) for p in range(k)]
        parts = [wide[tuple(index + [tap])] for tap in taps]  # noqa: RUF005
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        wide = total
    return wide


def _lp_pool(call: Call, x: Tensor) -> Tensor:
    p = call.attribute("p", 2)
    window = _windows(call, x)
    return _sums(x.abs() ** p, window, _ceiled(call, x, window)) ** (1.0 / p)


def _spatial(x: Tensor) -> list[int]:
    return list(range(2, x.ndim))


def _global_lp(call: Call, x: Tensor) -> Tensor:
    p = call.attribute("p", 2)
    return torch.sum(x.abs() ** p, _spatial(x), keepdim=True) ** (1.0 / p)


def _max_unpool(call: Call, *inputs: Any) -> Tensor:
    x, places = inputs[:2]
    shape = call.array(2, "output_shape", inputs)
    kernel = call.attribute("kernel_shape")
    stride = call.attribute("strides") or [1] * len(kernel)
    pads = call.attribute("pads") or [0] * (2 * len(kernel))
    natural = [
        (n - 1) * s - pads[i] - pads[i + len(kernel)] + k
        for i, (n, s, k) in enumerate(zip(x.shape[2:], stride, kernel, strict=True))
    ]
    full = [*x.shape[:2], *natural]
    flat = torch.zeros(math.prod(full), dtype=x.dtype)
    result = torch.scatter(flat, 0, places.reshape(-1), x.reshape(-1)).reshape(full)
    # The places count in the plane that the window implies, in the corner of a larger one.
    more = (
        [0] * len(natural)
        if shape is None
        else [int(wanted) - extent for wanted, extent in zip(shape[2:], natural, strict=True)]
    )
    return padded(result, [0] * len(natural), more, 0.0)


OPERATORS: dict[str, Operator] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda c, x: torch.mean(x, _spatial(x), keepdim=True),
    "GlobalLpPool": _global_lp,
    "GlobalMaxPool": lambda c, x: torch.amax(x, _spatial(x), keepdim=True),
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}
