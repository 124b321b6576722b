"""Quantised operators, in the integers that the standard says."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from tvmfuse.frontend.onnx.call import Call, Operator, axis_in
from tvmfuse.frontend.onnx.carried import KINDS, Kind, decoded, encoded
from tvmfuse.frontend.onnx.operators.products import convolve
from tvmfuse.frontend.onnx.tensors import element_type
from tvmfuse.frontend.qdq import dequantize_linear, quantize_linear

_BYTES = (torch.uint8, torch.int8)


def _spread(call: Call, scale: Tensor, x: Tensor) -> Tensor:
    """Scale or zero point so that it broadcasts: one a tensor, a slice of ``axis``, or a block."""
    if scale.ndim == 0 or scale.numel() == 1:
        return scale.reshape(())
    axis = axis_in(call.attribute("axis", 1), x.ndim)
    block = call.attribute("block_size", 0)
    if block:
        return scale.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    return scale.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def _to_integer(x: Tensor, zero: Tensor, kind: Kind | None = None) -> Tensor:
    limits = torch.iinfo(zero.dtype)
    low, high = (limits.min, limits.max) if kind is None else (kind.low, kind.high)
    rounded = torch.round(x) if x.dtype == torch.float64 else torch.round(x).float()
    return torch.clamp(rounded + zero.to(rounded.dtype), low, high).to(zero.dtype)


def _stays_whole(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None) -> bool:
    """Whether bytes and parameters are as the compiler's own operators take them."""
    known = 1 in call.known and (zero is None or 2 in call.known)
    plain = not call.kinds and not any(call.made) and not call.attribute("block_size", 0)
    floats = scale.dtype == torch.float32 and scale.ndim < 2
    finite = known and bool((np.isfinite(call.known[1]) & (call.known[1] > 0)).all())
    return known and plain and floats and finite and x.ndim > 0


def _quantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    bytes_out = zero is not None and zero.dtype in _BYTES and x.dtype == torch.float32
    if zero is not None and bytes_out and _stays_whole(call, x, scale, zero):
        axis = axis_in(call.attribute("axis", 1), x.ndim) if scale.numel() > 1 else 0
        return quantize_linear(x, scale, zero, axis)
    made = call.made[0] if call.made else None
    kind = None if made is None else KINDS[made]
    inner = (x.float() if not x.is_floating_point() else x) / _spread(call, scale, x)
    if made is not None and not KINDS[made].high:
        # The zero point of floats only names their type: the standard wants it to be zero.
        return encoded(inner, made, bool(call.attribute("saturate", 1)))
    if zero is None:
        given = call.attribute("output_dtype", 0) or onnx.TensorProto.UINT8
        zero = torch.zeros((), dtype=element_type(given, "its result"))
    return _to_integer(inner, _spread(call, zero, x), kind)


def _dequantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    if x.dtype in _BYTES and _stays_whole(call, x, scale, zero):
        axis = axis_in(call.attribute("axis", 1), x.ndim) if scale.numel() > 1 else 0
        shift = torch.zeros_like(scale, dtype=x.dtype) if zero is None else zero
        return dequantize_linear(x, scale, shift, axis)
    kind = call.kinds.get(0)
    if kind is not None and not KINDS[kind].high:
        return decoded(x, kind).to(scale.dtype) * _spread(call, scale, x)
    wide = x.to(torch.int32)
    if zero is not None:
        wide = wide - _spread(call, zero, x).to(torch.int32)
    return wide.to(scale.dtype) * _spread(call, scale, x)


def _dynamic(call: Call, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low = torch.clamp(x.amin(), max=0)
    high = torch.clamp(x.amax(), min=0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.clamp(torch.round(-low / scale), 0, 255).to(torch.uint8)
    return _to_integer(x / scale, zero), scale, zero


def _shifted(x: Tensor, zero: Tensor | None, axis: int | None = None) -> Tensor:
    wide = x.to(torch.int32)
    if zero is None:
        return wide
    zero = zero.to(torch.int32)
    if zero.ndim == 1 and zero.numel() > 1 and axis is not None:
        zero = zero.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    return wide - (zero.reshape(()) if zero.numel() == 1 else zero)


def _matmul_integer(
    call: Call, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    return torch.matmul(_shifted(a, a_zero, -2), _shifted(b, b_zero, -1))


def _exact_conv(call: Call, x: Tensor, weight: Tensor) -> Tensor:
    # Products of bytes: doubles hold every sum of fewer than 2^36 of them.
    return convolve(call, x.double(), weight.double(), None)


def _conv_integer(
    call: Call, x: Tensor, weight: Tensor, x_zero: Any = None, w_zero: Any = None
) -> Tensor:
    return _exact_conv(call, _shifted(x, x_zero), _shifted(weight, w_zero, 0)).to(torch.int32)


def _qlinear_matmul(
    call: Call, a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor,
    b_zero: Tensor, y_scale: Tensor, y_zero: Tensor,
) -> Tensor:  # fmt: skip
    product = torch.matmul(_shifted(a, a_zero, -2), _shifted(b, b_zero, -1))
    rows = a_scale.reshape(-1, 1) if a_scale.numel() > 1 else a_scale.reshape(())
    scale = rows.float() * (b_scale if b_scale.numel() > 1 else b_scale.reshape(())).float()
    return _to_integer(product.float() * scale / y_scale.float(), y_zero)


def _qlinear_conv(
    call: Call, x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor,
    w_zero: Tensor, y_scale: Tensor, y_zero: Tensor, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    sums = _exact_conv(call, _shifted(x, x_zero), _shifted(w, w_zero, 0))
    shape = [1, -1, *[1] * (x.ndim - 2)]
    if bias is not None:
        sums = sums + bias.reshape(shape)
    scale = (x_scale * w_scale / y_scale).reshape(-1)
    spread = scale.reshape(shape) if scale.numel() > 1 else scale.reshape(())
    return _to_integer(sums.float() * spread, y_zero.reshape(()))


OPERATORS: dict[str, Operator] = {
    "ConvInteger": _conv_integer, "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic, "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv, "QLinearMatMul": _qlinear_matmul, "QuantizeLinear": _quantize,
}  # fmt: skip
