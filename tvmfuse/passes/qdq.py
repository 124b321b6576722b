"""What passes know of quantised tensors: their parameters, and how they are said in Relax.

While operators are turned into integer ones, ``relax.quantize`` and ``relax.dequantize`` stay
whole. Behind that they are said in element-wise operators, of which every pass knows the layout:

    quantize     astype(minimum(maximum(add(round(multiply(x, 1/s)), z), low), high), "uint8")
    dequantize   multiply(subtract(astype(q, "float32"), z), s)

As PyTorch's reference of PT2E, quantising multiplies by the inverse of the scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmfuse.passes.relax_tools import array_of, constant, dtype_of, op_name, shape_of, value_behind

FLOAT = "float32"
BYTES = ("uint8", "int8")
Lookup = Callable[[relax.Var], Any]
Emit = Callable[[Any], Any]


@dataclass(frozen=True)
class Quantised:
    """A tensor of integers with one scale and one zero point.

    Parameters
    ----------
    source
        The integers.
    scale, zero
        ``(source - zero) * scale`` is meant.
    dtype
        Element type of ``source``.
    """

    source: Any
    scale: float
    zero: int
    dtype: str

    def same_grid(self, other: Quantised) -> bool:
        """Whether equal integers mean equal numbers."""
        return (self.scale, self.zero, self.dtype) == (other.scale, other.zero, other.dtype)


def parameters(call: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero point of a ``quantize`` or a ``dequantize``, along its axis or single."""
    scale, zero = array_of(call.args[1]), array_of(call.args[2])
    if scale is None or zero is None:
        raise ValueError(f"the parameters of {op_name(call)} are not constant")
    return scale, zero


def quantised(expr: Any, lookup: Lookup) -> Quantised | None:
    """What ``expr`` dequantises as a whole; None for anything else."""
    call = value_behind(expr, lookup)
    if op_name(call) != "relax.dequantize" or dtype_of(call) != FLOAT:
        return None
    scale, zero = parameters(call)
    source, dtype = call.args[0], dtype_of(call.args[0])
    if scale.size != 1 or dtype not in BYTES or array_of(source) is not None:
        return None
    return Quantised(source, float(scale.reshape(())), int(zero.reshape(())), dtype)


def dequantize(q: Quantised) -> relax.Call:
    """The numbers that are meant."""
    zero = relax.const(q.zero, q.dtype)
    return relax.op.dequantize(q.source, relax.const(q.scale, FLOAT), zero, -1, FLOAT)


def quantize(x: Any, scale: float, zero: int, dtype: str) -> relax.Call:
    """The integers that are nearest."""
    return relax.op.quantize(x, relax.const(scale, FLOAT), relax.const(zero, dtype), -1, dtype)


@dataclass(frozen=True)
class Weight:
    """A constant in bytes: ``values * scale``, with a scale of the same rank."""

    values: np.ndarray
    scale: np.ndarray


def weight_of(expr: Any, lookup: Lookup) -> Weight | None:
    """The constant that ``expr`` dequantises, through transposes; None for anything else."""
    call = value_behind(expr, lookup)
    if op_name(call) == "relax.permute_dims":
        inner = weight_of(call.args[0], lookup)
        if inner is None:
            return None
        axes = None if call.attrs.axes is None else [int(a) for a in call.attrs.axes]
        return Weight(inner.values.transpose(axes), inner.scale.transpose(axes))
    if op_name(call) != "relax.dequantize" or dtype_of(call) != FLOAT:
        return None
    stored = array_of(call.args[0])
    if stored is None or str(stored.dtype) not in BYTES:
        return None
    scale, zero = (_along(p, call) for p in parameters(call))
    return Weight(stored.astype(np.int32) - zero.astype(np.int32), scale)


def _along(parameter: np.ndarray, call: Any) -> np.ndarray:
    """A parameter with the rank of the tensor, its values along the call's axis."""
    rank = len(shape_of(call) or ())
    if parameter.size == 1:
        return parameter.reshape((1,) * rank)
    axis = int(call.attrs.axis) % rank
    return parameter.reshape([-1 if a == axis else 1 for a in range(rank)])


def dequantised_constant(call: Any) -> relax.Expr | None:
    """The numbers of a constant that nobody multiplies as integers; None for anything else."""
    stored = array_of(call.args[0])
    if stored is None or dtype_of(call) != FLOAT:
        return None
    scale, zero = (_along(p, call) for p in parameters(call))
    wide = stored.astype(np.int32) - zero.astype(np.int32)
    return constant(wide.astype(np.float32) * scale)


def spelt_out(call: Any, emit: Emit) -> relax.Expr:
    """A ``quantize`` or a ``dequantize`` of float32 in element-wise operators."""
    scale, zero = parameters(call)
    if scale.size == 1:
        scale, zero = scale.reshape(()), zero.reshape(())
    else:
        scale, zero = _along(scale, call), _along(zero, call)
    shift = _number(zero)
    x = call.args[0]
    if op_name(call) == "relax.dequantize":
        moved = emit(relax.op.subtract(emit(relax.op.astype(x, FLOAT)), shift))
        return relax.op.multiply(moved, _number(scale))
    inverse = _number(np.float32(1) / scale)
    whole = emit(relax.op.round(emit(relax.op.multiply(x, inverse))))
    limits = np.iinfo(dtype_of(call))
    kept = emit(relax.op.add(whole, shift))
    kept = emit(relax.op.maximum(kept, relax.const(limits.min, FLOAT)))
    kept = emit(relax.op.minimum(kept, relax.const(limits.max, FLOAT)))
    return relax.op.astype(kept, dtype_of(call))


def _number(values: np.ndarray) -> Any:
    """A float32 constant; one number has no axis, so that every layout takes it."""
    return constant(values.astype(FLOAT)) if values.ndim else relax.const(float(values), FLOAT)
