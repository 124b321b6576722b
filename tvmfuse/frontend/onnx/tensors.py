"""Tensors, element types and attributes of ONNX files, in PyTorch's terms."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper

from tvmfuse.errors import ImportModelError
from tvmfuse.frontend.onnx.carried import KINDS, enter

_TYPES = {
    TensorProto.FLOAT: torch.float32, TensorProto.DOUBLE: torch.float64,
    TensorProto.FLOAT16: torch.float16, TensorProto.BFLOAT16: torch.bfloat16,
    TensorProto.INT8: torch.int8, TensorProto.INT16: torch.int16,
    TensorProto.INT32: torch.int32, TensorProto.INT64: torch.int64,
    TensorProto.UINT8: torch.uint8, TensorProto.BOOL: torch.bool,
}  # fmt: skip


def element_type(number: int, what: str, outside: bool = False) -> torch.dtype:
    """What PyTorch computes an ONNX element type in; raises ImportModelError for one we lack.

    ``outside`` asks for what the model takes and returns (:mod:`.carried`).
    """
    if number in KINDS:
        return KINDS[number].outside if outside else KINDS[number].inside
    if number not in _TYPES:
        name = TensorProto.DataType.Name(number)
        known = [str(t).removeprefix("torch.") for t in _TYPES.values()]
        known += [kind.name.lower() for kind in KINDS.values()]
        raise ImportModelError(f"{what} has the element type {name}; known are " + ", ".join(known))
    return _TYPES[number]


def to_tensor(proto: TensorProto) -> torch.Tensor:
    """A tensor of the file, as a model takes it."""
    dtype = element_type(proto.data_type, f"the constant {proto.name!r}", outside=True)
    array = numpy_helper.to_array(proto)
    if dtype == torch.bfloat16:
        return torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
    if proto.data_type in KINDS:
        name = str(dtype).removeprefix("torch.")
        array = array.astype(name) if KINDS[proto.data_type].high else array.view(name)
    return torch.tensor(array)  # copies: arrays over the file's bytes are read-only


def constant(proto: TensorProto) -> torch.Tensor:
    """A tensor of the file, as the graph carries it."""
    return enter(to_tensor(proto), proto.data_type)


def attribute_value(attribute: onnx.AttributeProto) -> Any:
    """An attribute as a plain value; texts as ``str``."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, TensorProto):
        return constant(value)
    if isinstance(value, onnx.GraphProto):
        return value
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [text.decode() for text in value]
    if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        return list(value)
    return value


def onnx_type(dtype: torch.dtype) -> int:
    """The number of an element type in ONNX."""
    return next(number for number, known in _TYPES.items() if known == dtype)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as NumPy has it, now: while PyTorch traces, no value can be read."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
