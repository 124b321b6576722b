"""Quantising and dequantising by scales that are known: PyTorch's operators and ours for ONNX.

Both stay single operators with constant parameters, which `tvmfuse.passes` knows; a scale that is
computed by the model is refused here (ONNX's front end says such a node with simpler operators).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tvm import relax


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _array(importer: Any, value: Any, what: str) -> np.ndarray:
    """A parameter as an array: a number of the program, or one of its constants."""
    if isinstance(value, (int, float)):
        return np.asarray(value)
    found = importer.folder.fold(value)
    if found is None:
        raise ValueError(f"the {what} of a quantised tensor depends on the model's inputs")
    return found.numpy()


def _quantize(importer: Any, node: Any) -> Any:
    """``quantize_per_tensor`` and ``quantize_per_channel``."""
    x, scale, zero, *rest = node.args
    axis, low, high, dtype = rest if len(rest) == 4 else (-1, *rest)
    emit = importer.block_builder.emit
    name = _name(dtype)
    scale, zero = _parameters(importer, scale, zero, name)
    found = emit(relax.op.quantize(importer.env[x], scale, zero, axis, name))
    limits = torch.iinfo(dtype)
    if (low, high) == (limits.min, limits.max):
        return found
    if name not in ("int8", "uint8"):
        raise ValueError(f"the range {low} to {high} of {name} is not known")
    wide = emit(relax.op.astype(found, "int32"))
    kept = emit(relax.op.maximum(wide, relax.const(low, "int32")))
    kept = emit(relax.op.minimum(kept, relax.const(high, "int32")))
    return emit(relax.op.astype(kept, name))


def _dequantize(importer: Any, node: Any) -> Any:
    """``dequantize_per_tensor`` and ``dequantize_per_channel``."""
    x, scale, zero, *rest = node.args
    axis = rest[0] if len(rest) == 4 else -1
    name = _name(x.meta["val"].dtype)
    scale, zero = _parameters(importer, scale, zero, name)
    out = _name(node.meta["val"].dtype)
    return importer.block_builder.emit(relax.op.dequantize(importer.env[x], scale, zero, axis, out))


def _quantize_linear(importer: Any, node: Any) -> Any:
    """Ours: the type is that of the zero point."""
    x, scale, zero, axis = node.args
    name = _name(node.meta["val"].dtype)
    scale, zero = _parameters(importer, scale, zero, name)
    return importer.block_builder.emit(relax.op.quantize(importer.env[x], scale, zero, axis, name))


def _dequantize_linear(importer: Any, node: Any) -> Any:
    x, scale, zero, axis = node.args
    name = _name(x.meta["val"].dtype)
    scale, zero = _parameters(importer, scale, zero, name)
    found = relax.op.dequantize(importer.env[x], scale, zero, axis, "float32")
    return importer.block_builder.emit(found)


def _parameters(importer: Any, scale: Any, zero: Any, dtype: str) -> tuple[Any, Any]:
    """Scale and zero point as constants; one of each a tensor has no axis."""
    scales = _array(importer, scale, "scale").astype(np.float32)
    if zero is None:
        zeros = np.zeros_like(scales, dtype)
    else:
        zeros = _array(importer, zero, "zero point").astype(dtype)
    if not bool((np.isfinite(scales) & (scales > 0)).all()):
        raise ValueError(f"a scale is {scales.min()}: scales must be positive and finite")
    if scales.size == 1:
        scales, zeros = scales.reshape(()), zeros.reshape(())
    return relax.const(scales), relax.const(zeros)


CONVERTERS = {
    "quantize_per_tensor.default": _quantize,
    "quantize_per_tensor.tensor": _quantize,
    "quantize_per_channel.default": _quantize,
    "dequantize_per_tensor.default": _dequantize,
    "dequantize_per_tensor.tensor": _dequantize,
    "dequantize_per_channel.default": _dequantize,
    "quantize_linear.default": _quantize_linear,
    "dequantize_linear.default": _dequantize_linear,
}
