"""Reductions, softmax and sorts along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tvmfuse.frontend.onnx.call import Call, Operator, axis_in


def _reduce(function: Callable[[Tensor, list[int], bool], Tensor]) -> Operator:
    def apply(call: Call, *inputs: Any) -> Tensor:
        x = inputs[0]
        axes = call.setting(1, "axes", inputs)
        keep = bool(call.attribute("keepdims", 1))
        if not axes and call.attribute("noop_with_empty_axes", 0):
            # No axis is reduced; what is done to each element stays (the square of SumSquare).
            return function(x.unsqueeze(-1), [x.ndim], False)
        every = list(range(x.ndim)) if not axes else [axis_in(a, x.ndim) for a in axes]
        return function(x, every, keep) if x.ndim else function(x.reshape(1), [0], False)

    return apply


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.sum(x, axes, keepdim=keep, dtype=x.dtype)


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.is_floating_point():
        return torch.mean(x, axes, keepdim=keep)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return torch.div(_sum(x, axes, keep), count, rounding_mode="trunc")


def _extreme(largest: bool) -> Callable[[Tensor, list[int], bool], Tensor]:
    def apply(x: Tensor, axes: list[int], keep: bool) -> Tensor:
        if x.numel() == 0:
            return _extreme_of_nothing(x, axes, keep, largest)
        return torch.amax(x, axes, keepdim=keep) if largest else torch.amin(x, axes, keepdim=keep)

    return apply


def _extreme_of_nothing(x: Tensor, axes: list[int], keep: bool, largest: bool) -> Tensor:
    sizes = [1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes]
    if x.is_floating_point():
        value = float("-inf") if largest else float("inf")
    elif x.dtype == torch.bool:
        value = not largest
    else:
        value = torch.iinfo(x.dtype).min if largest else torch.iinfo(x.dtype).max
    return torch.full(sizes, value, dtype=x.dtype)


def _prod(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keepdim=keep, dtype=x.dtype)
    return x


def _l1(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return _sum(x.abs(), axes, keep)


def _l2(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    squares = _sum(x * x, axes, keep)
    return squares.sqrt() if x.is_floating_point() else squares.float().sqrt().to(x.dtype)


def _log_sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.log(_sum(x, axes, keep))


def _log_sum_exp(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.numel() == 0:
        return _extreme_of_nothing(x, axes, keep, True)
    return torch.logsumexp(x, axes, keepdim=keep)


def _sum_square(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return _sum(x * x, axes, keep)


def _arg(function: Callable[..., Tensor]) -> Operator:
    def apply(call: Call, x: Tensor) -> Tensor:
        axis = axis_in(call.attribute("axis", 0), x.ndim)
        keep = bool(call.attribute("keepdims", 1))
        if not call.attribute("select_last_index", 0):
            return function(x, axis, keepdim=keep)
        return x.shape[axis] - 1 - function(torch.flip(x, (axis,)), axis, keepdim=keep)

    return apply


def _along(function: Callable[[Tensor, int], Tensor]) -> Operator:
    """Of one axis since opset 13; before, of all axes from one on, together."""

    def apply(call: Call, x: Tensor) -> Tensor:
        if call.version >= 13:
            return function(x, axis_in(call.attribute("axis", -1), x.ndim))
        axis = axis_in(call.attribute("axis", 1), x.ndim)
        if axis == x.ndim - 1:
            return function(x, axis)
        return function(x.flatten(axis), axis).reshape(x.shape)

    return apply


def _hardmax(x: Tensor, axis: int) -> Tensor:
    places = torch.arange(x.shape[axis]).reshape([-1] + [1] * (x.ndim - axis - 1))
    return (places == torch.argmax(x, axis, keepdim=True)).to(x.dtype)


def _cumsum(call: Call, *inputs: Any) -> Tensor:
    x = inputs[0]
    axis = axis_in(int(call.required(1, "axis", inputs).reshape(())), x.ndim)
    backward = bool(call.attribute("reverse", 0))
    x = torch.flip(x, (axis,)) if backward else x
    sums = torch.cumsum(x, axis, dtype=x.dtype)
    if call.attribute("exclusive", 0):
        zero = torch.zeros_like(x.narrow(axis, 0, 1))
        sums = torch.cat([zero, sums.narrow(axis, 0, x.shape[axis] - 1)], axis)
    return torch.flip(sums, (axis,)) if backward else sums


def _top_k(call: Call, *inputs: Any) -> tuple[Tensor, Tensor]:
    x = inputs[0]
    axis = axis_in(call.attribute("axis", -1), x.ndim)
    count = call.attribute("k") if call.version < 10 else call.required(1, "k", inputs).item()
    largest = bool(call.attribute("largest", 1))
    # The standard gives equal values in the order of their places: a stable sort does.
    values, places = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, count), places.narrow(axis, 0, count)


OPERATORS: dict[str, Operator] = {
    "ArgMax": _arg(torch.argmax), "ArgMin": _arg(torch.argmin), "CumSum": _cumsum,
    "Hardmax": _along(_hardmax), "LogSoftmax": _along(torch.log_softmax),
    "ReduceL1": _reduce(_l1), "ReduceL2": _reduce(_l2), "ReduceLogSum": _reduce(_log_sum),
    "ReduceLogSumExp": _reduce(_log_sum_exp), "ReduceMax": _reduce(_extreme(True)),
    "ReduceMean": _reduce(_mean), "ReduceMin": _reduce(_extreme(False)),
    "ReduceProd": _reduce(_prod), "ReduceSum": _reduce(_sum),
    "ReduceSumSquare": _reduce(_sum_square), "Softmax": _along(torch.softmax), "TopK": _top_k,
}  # fmt: skip
