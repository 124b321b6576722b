"""ONNX's QuantizeLinear and DequantizeLinear with known parameters, as operators of PyTorch.

PyTorch's own (``quantized_decomposed``) multiply by the inverse of the scale, where the standard
divides. Kept whole in the exported program, they tell the compiler which tensors are integers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # registers PyTorch's own, for .pt2 files that use them
from torch import Tensor

from tvmfuse.frontend.rewriting import operator_name

_LIBRARY = torch.library.Library("tvmfuse", "DEF")
_LIBRARY.define("quantize_linear(Tensor x, Tensor scale, Tensor zero, int axis) -> Tensor")
_LIBRARY.define("dequantize_linear(Tensor x, Tensor scale, Tensor zero, int axis) -> Tensor")
# Names of all operators that stay whole although all they read may be constant: weights.
DEQUANTIZE = frozenset(("dequantize_linear", "dequantize_per_tensor", "dequantize_per_channel"))
QUANTIZE = frozenset(("quantize_linear", "quantize_per_tensor", "quantize_per_channel"))


def along(parameter: Tensor, x: Tensor, axis: int) -> Tensor:
    """A scale or zero point so that it broadcasts: one a tensor, or a slice of ``axis``."""
    if parameter.numel() == 1:
        return parameter.reshape(())
    return parameter.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def _quantize(x: Tensor, scale: Tensor, zero: Tensor, axis: int) -> Tensor:
    limits = torch.iinfo(zero.dtype)
    rounded = torch.round(x / along(scale, x, axis))
    shifted = rounded + along(zero, x, axis).to(rounded.dtype)
    return torch.clamp(shifted, limits.min, limits.max).to(zero.dtype)


def _dequantize(x: Tensor, scale: Tensor, zero: Tensor, axis: int) -> Tensor:
    wide = x.to(torch.int32) - along(zero, x, axis).to(torch.int32)
    return wide.to(scale.dtype) * along(scale, x, axis)


def _like_zero(x: Tensor, scale: Tensor, zero: Tensor, axis: int) -> Tensor:
    return torch.empty_like(x, dtype=zero.dtype)


def _like_scale(x: Tensor, scale: Tensor, zero: Tensor, axis: int) -> Tensor:
    return torch.empty_like(x, dtype=scale.dtype)


_LIBRARY.impl("quantize_linear", _quantize, "CompositeExplicitAutograd")
_LIBRARY.impl("dequantize_linear", _dequantize, "CompositeExplicitAutograd")
_LIBRARY.impl("quantize_linear", _like_zero, "Meta")
_LIBRARY.impl("dequantize_linear", _like_scale, "Meta")

quantize_linear = torch.ops.tvmfuse.quantize_linear
dequantize_linear = torch.ops.tvmfuse.dequantize_linear


def quantises(program: Any) -> bool:
    """Whether a program rounds floats to the integers of a grid."""
    return any(
        node.op == "call_function" and operator_name(node) in QUANTIZE
        for node in program.graph.nodes
    )
