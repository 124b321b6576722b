"""Normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tvmfuse.frontend.onnx.call import Call, Operator, Refusal, axis_in
from tvmfuse.frontend.onnx.tensors import element_type


def _batch(
    call: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    if call.attribute("training_mode", 0):
        raise Refusal("it is in training mode; export the model for inference")
    if not call.attribute("spatial", 1):
        raise Refusal("spatial=0 is not known")
    return F.batch_norm(
        x, mean.to(x.dtype), variance.to(x.dtype), scale.to(x.dtype), bias.to(x.dtype),
        False, 0.0, call.attribute("epsilon", 1e-5),
    )  # fmt: skip


def _instance(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.group_norm(x, x.shape[1], scale, bias, call.attribute("epsilon", 1e-5))


def _group(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups, epsilon = call.attribute("num_groups"), call.attribute("epsilon", 1e-5)
    if call.version < 21:  # a scale a group
        each = x.shape[1] // groups
        scale, bias = scale.repeat_interleave(each), bias.repeat_interleave(each)
    return F.group_norm(x, groups, scale, bias, epsilon)


def _layer(call: Call, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Any:
    axis = axis_in(call.attribute("axis", -1), x.ndim)
    epsilon = call.attribute("epsilon", 1e-5)
    shape = list(x.shape[axis:])
    plain = list(scale.shape) == shape and (bias is None or list(bias.shape) == shape)
    if call.wanted == frozenset((0,)) and plain:
        return F.layer_norm(x, shape, scale, bias, epsilon)
    axes = list(range(axis, x.ndim))
    inner = x.to(element_type(call.attribute("stash_type", 1), "its stash"))
    mean = inner.mean(axes, keepdim=True)
    centered = inner - mean
    inverse = torch.rsqrt((centered * centered).mean(axes, keepdim=True) + epsilon)
    y = (centered * inverse).to(x.dtype) * scale
    return (y if bias is None else y + bias), mean, inverse


def _rms(call: Call, x: Tensor, scale: Tensor) -> Tensor:
    axes = list(range(axis_in(call.attribute("axis", -1), x.ndim), x.ndim))
    inner = x.to(element_type(call.attribute("stash_type", 1), "its stash"))
    mean = (inner * inner).mean(axes, keepdim=True)
    return (inner * torch.rsqrt(mean + call.attribute("epsilon", 1e-5))).to(x.dtype) * scale


def _lrn(call: Call, x: Tensor) -> Tensor:
    size = call.attribute("size")
    alpha, beta = call.attribute("alpha", 1e-4), call.attribute("beta", 0.75)
    before, after = (size - 1) // 2, size // 2
    pads = [0, 0] * (x.ndim - 2) + [before, after]
    squares = F.pad(x * x, pads)
    total = sum(squares.narrow(1, i, x.shape[1]) for i in range(size))
    return x / (call.attribute("bias", 1.0) + alpha / size * total) ** beta


def _lp(call: Call, x: Tensor) -> Tensor:
    axis = axis_in(call.attribute("axis", -1), x.ndim)
    if call.attribute("p", 2) == 1:
        norm = x.abs().sum(axis, keepdim=True)
    else:
        norm = torch.sqrt((x * x).sum(axis, keepdim=True))
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)  # the standard's word on zeros


OPERATORS: dict[str, Operator] = {
    "BatchNormalization": _batch, "GroupNormalization": _group,
    "InstanceNormalization": _instance, "LRN": _lrn, "LayerNormalization": _layer,
    "LpNormalization": _lp, "RMSNormalization": _rms,
}  # fmt: skip
