"""Element types that PyTorch does not compute with, carried in those it does.

===================  ==========================================  ===============================
type                 inside the graph                            as input and output of the model
===================  ==========================================  ===============================
uint16, uint32       int32, int64; results are cut to their bits  itself
uint64               its bits in int64                            itself
of 2 and 4 bits      int8, uint8                                  int8, uint8
8-bit floats         their bits in uint8                          their bits in uint8
===================  ==========================================  ===============================

Sums, products and comparisons of the wider type are those of the narrower one once the result is
cut, so most operators need to know nothing of it. Of uint64 and of the narrow types only the
operators that are named here are known; all others refuse.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import onnx
import torch
from onnx import TensorProto, defs
from torch import Tensor

from tvmfuse.frontend.onnx.call import Call, Operator, Refusal


class Kind(NamedTuple):
    """How one element type is carried; ``outside`` is what the model takes and returns."""

    name: str
    inside: torch.dtype
    outside: torch.dtype
    low: int = 0
    high: int = 0  # 0: it is a float


KINDS = {
    TensorProto.UINT16: Kind("UINT16", torch.int32, torch.uint16, 0, 2**16 - 1),
    TensorProto.UINT32: Kind("UINT32", torch.int64, torch.uint32, 0, 2**32 - 1),
    TensorProto.UINT64: Kind("UINT64", torch.int64, torch.uint64, 0, 2**64 - 1),
    TensorProto.INT4: Kind("INT4", torch.int8, torch.int8, -8, 7),
    TensorProto.UINT4: Kind("UINT4", torch.uint8, torch.uint8, 0, 15),
    TensorProto.INT2: Kind("INT2", torch.int8, torch.int8, -2, 1),
    TensorProto.UINT2: Kind("UINT2", torch.uint8, torch.uint8, 0, 3),
    TensorProto.FLOAT8E4M3FN: Kind("FLOAT8E4M3FN", torch.uint8, torch.uint8),
    TensorProto.FLOAT8E4M3FNUZ: Kind("FLOAT8E4M3FNUZ", torch.uint8, torch.uint8),
    TensorProto.FLOAT8E5M2: Kind("FLOAT8E5M2", torch.uint8, torch.uint8),
    TensorProto.FLOAT8E5M2FNUZ: Kind("FLOAT8E5M2FNUZ", torch.uint8, torch.uint8),
}

_CUT = (TensorProto.UINT16, TensorProto.UINT32)
_UNSIGNED = (*_CUT, TensorProto.UINT64)
_MOVES = frozenset(
    (
        "Compress", "Concat", "Constant", "ConstantOfShape", "DepthToSpace", "Expand", "Flatten",
        "Gather", "GatherElements", "GatherND", "Identity", "Pad", "Reshape", "ReverseSequence",
        "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose",
        "Trilu", "Unsqueeze",
    )
)  # fmt: skip
_CONVERTS = frozenset(("Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"))
# Alike for signed and unsigned integers of one width.
_RING = frozenset(
    (
        "Add", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Equal", "EyeLike", "Mul",
        "OneHot", "ReduceSum", "Scatter", "Sub", "Sum", "Where",
    )
)  # fmt: skip
# They do nothing but compare, so they may see the values in another order-preserving form.
_ORDER = frozenset(
    (
        "ArgMax", "ArgMin", "Clip", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max",
        "Min", "ReduceMax", "ReduceMin", "TopK",
    )
)  # fmt: skip
_TOP = torch.iinfo(torch.int64).min


def kind_of(element_type: int) -> int | None:
    """The element type, if another one carries it."""
    return element_type if element_type in KINDS else None


def enter(x: Tensor, kind: int | None) -> Tensor:
    """What the model takes, as the graph carries it."""
    if kind not in KINDS:
        return x
    return x if x.dtype == KINDS[kind].inside else x.to(KINDS[kind].inside)


def leave(x: Tensor, kind: int | None) -> Tensor:
    """What the graph carries, as the model returns it."""
    return x.to(KINDS[kind].outside) if kind in _UNSIGNED else x


def kinds_made(node: onnx.NodeProto, opset: int, kinds: dict[int, int]) -> tuple[int | None, ...]:
    """Kinds of a node's outputs, by the type constraints of the standard."""
    asked = [_asked(a) for a in node.attribute]
    first = next((kind for kind in asked if kind in KINDS), None)
    if not kinds and first is None:
        return ()
    schema = defs.get_schema(node.op_type, opset, "")
    formal_in, formal_out = list(schema.inputs), list(schema.outputs)
    texts = [f.type_str for f in (*formal_in, *formal_out)]
    if any(t.startswith(("seq", "optional", "S", "O")) for t in texts):
        raise Refusal(f"puts {KINDS[next(iter(kinds.values()))].name} into a sequence")
    of_input = {formal_in[min(i, len(formal_in) - 1)].type_str: kind for i, kind in kinds.items()}
    made = []
    for place in range(len(node.output)):
        text = formal_out[min(place, len(formal_out) - 1)].type_str
        made.append(first if first is not None else of_input.get(text))
    return tuple(made)


def _asked(attribute: onnx.AttributeProto) -> int | None:
    if attribute.name in ("to", "dtype", "output_dtype"):
        return int(attribute.i)
    return int(attribute.t.data_type) if attribute.name == "value" else None


def run(call: Call, function: Operator, inputs: tuple[Any, ...]) -> Any:
    """What a node gives for carried values."""
    kinds = {*call.kinds.values(), *(k for k in call.made if k is not None)}
    if not kinds:
        return function(call, *inputs)
    _refuse_unknown(call, kinds)
    if TensorProto.UINT64 in kinds and call.op not in _MOVES | _CONVERTS | _RING:
        return _of_64_bits(call, function, inputs)
    return _cut(call, function(call, *inputs))


def _refuse_unknown(call: Call, kinds: set[int]) -> None:
    known = _MOVES | _CONVERTS
    for kind in kinds - set(_CUT):
        wide = _RING | _ORDER | {*_UINT64} if kind == TensorProto.UINT64 else frozenset[str]()
        if call.op not in known | wide:
            raise Refusal(f"is not known for {KINDS[kind].name}; cast to a wider type before it")


def _cut(call: Call, result: Any) -> Any:
    parts = result if isinstance(result, tuple) else (result,)
    cut = []
    for part, kind in zip(parts, (*call.made, *[None] * len(parts)), strict=False):
        narrow = kind in _CUT and call.op not in _MOVES
        cut.append(part.to(KINDS[kind].inside) & KINDS[kind].high if narrow else part)
    return tuple(cut) if isinstance(result, tuple) else cut[0]


def _of_64_bits(call: Call, function: Operator, inputs: tuple[Any, ...]) -> Any:
    if call.op in _UINT64:
        return _UINT64[call.op](call, function, inputs)
    flipped = tuple(x ^ _TOP if i in call.kinds else x for i, x in enumerate(inputs))
    known = {i: a ^ np.int64(_TOP) if i in call.kinds else a for i, a in call.known.items()}
    seen = Call(call.op, call.name, call.version, call.attributes, known, call.outputs, call.wanted)
    result = function(seen, *flipped)
    parts = result if isinstance(result, tuple) else (result,)
    parts = tuple(p ^ _TOP if k else p for p, k in zip(parts, call.made, strict=False))
    return parts if isinstance(result, tuple) else parts[0]


def _shift(call: Call, function: Operator, inputs: tuple[Any, ...]) -> Tensor:
    a, b = inputs
    inside = b & 63
    if call.attribute("direction") == "LEFT":
        shifted = torch.bitwise_left_shift(a, inside)
    else:
        shifted = _down(a, inside)
    return torch.where(inside == b, shifted, torch.zeros_like(shifted))


def _down(a: Tensor, by: Tensor) -> Tensor:
    """Bits moved down, zeros behind them (PyTorch copies the sign)."""
    by = by.expand(torch.broadcast_shapes(a.shape, by.shape))
    kept = torch.bitwise_left_shift(torch.full_like(by, -2), 63 - by)  # of the copies of the sign
    return torch.where(by == 0, a, torch.bitwise_right_shift(a, by) & ~kept)


def _divided(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Quotient and rest of unsigned integers (Hacker's Delight, 9-3)."""
    one = torch.ones_like(b)
    half = _down(a, one)
    safe = torch.where(b < 0, one, b)
    quotient = torch.bitwise_left_shift(torch.div(half, safe, rounding_mode="trunc"), one)
    rest = a - quotient * safe
    more = (rest ^ _TOP) >= (safe ^ _TOP)
    quotient = torch.where(more, quotient + 1, quotient)
    large = ((a ^ _TOP) >= (b ^ _TOP)).to(torch.int64)  # b has the highest bit: at most one fits
    quotient = torch.where(b < 0, large, quotient)
    return quotient, a - quotient * b


def _power(call: Call, function: Operator, inputs: tuple[Any, ...]) -> Tensor:
    base, exponent = inputs
    if 0 in call.kinds or not base.is_floating_point():
        raise Refusal("is not known for UINT64 and an integer; cast to a wider type before it")
    return torch.pow(base, _to_float(exponent, base.dtype))


_UINT64: dict[str, Callable[[Call, Operator, tuple[Any, ...]], Any]] = {
    "BitShift": _shift,
    "Div": lambda call, function, inputs: _divided(*inputs)[0],
    "Mod": lambda call, function, inputs: _divided(*inputs)[1],
    "Pow": _power,
}


def convert(
    x: Tensor, source: int | None, target: int | None, dtype: torch.dtype, saturate: bool = True
) -> Tensor:
    """``Cast``: ``dtype`` is that of the target, or of what carries it."""
    if source == target and source is not None:
        return x.clone()
    if source is not None and _is_float(source):
        x = decoded(x, source)
    elif source == TensorProto.UINT64 and (dtype.is_floating_point or _is_float(target)):
        x = _to_float(x, dtype if dtype == torch.float64 else torch.float32)
    if target is None or target in _CUT:
        return x.to(dtype)  # a cut follows
    if _is_float(target):
        return encoded(x if x.is_floating_point() else x.float(), target, saturate)
    if target == TensorProto.UINT64:
        return _from_float(x) if x.is_floating_point() else x.to(dtype)
    kind = KINDS[target]
    if x.is_floating_point():
        # Numbers out of range are left open by the standard; its reference makes them zero.
        whole = torch.trunc(x)
        return torch.where((whole >= kind.low) & (whole <= kind.high), whole, 0).to(dtype)
    span = kind.high - kind.low
    bits = x.to(torch.int64) & span
    return (torch.where(bits > kind.high, bits - span - 1, bits) if kind.low else bits).to(dtype)


def _is_float(kind: int | None) -> TypeGuard[int]:
    return kind is not None and not KINDS[kind].high


def _to_float(x: Tensor, dtype: torch.dtype) -> Tensor:
    # The lowest bit is kept in the half, so that it is rounded once.
    half = _down(x, torch.ones_like(x)) | (x & 1)
    return torch.where(x < 0, half.to(dtype) * 2, x.to(dtype))


def _from_float(x: Tensor) -> Tensor:
    high = x >= 2.0**63
    low = torch.where(high, x - 2.0**63, x).to(torch.int64)
    return torch.where(high, low ^ _TOP, low)


class _Codes(NamedTuple):
    """A float of 8 bits: values by code, and where rounding goes to the next code."""

    values: np.ndarray
    last: int  # code of the largest finite number
    borders: np.ndarray
    beyond: int  # what a number that is too large becomes without saturation
    nan: int
    negative_zero: bool


@functools.cache
def _codes(kind: int) -> _Codes:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    values = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    last = int(np.flatnonzero(np.isfinite(values[:128]))[-1])
    positive = values[: last + 1].astype(np.float64)
    ends = np.append(positive, 2 * positive[-1] - positive[-2])
    nan = int(np.flatnonzero(np.isnan(values))[0])
    infinite = np.flatnonzero(np.isposinf(values))
    beyond = int(infinite[0]) if len(infinite) else nan
    return _Codes(values, last, (ends[1:] + ends[:-1]) / 2, beyond, nan, values[128] == 0)


def decoded(bits: Tensor, kind: int) -> Tensor:
    """The numbers of 8-bit floats, as float32."""
    values = torch.from_numpy(_codes(kind).values)
    return values.index_select(0, bits.reshape(-1).to(torch.int64)).reshape(bits.shape)


def encoded(x: Tensor, kind: int, saturate: bool = True) -> Tensor:
    """The nearest 8-bit floats (ties to the even code), as bits."""
    codes = _codes(kind)
    x = x if x.dtype == torch.float64 else x.float()
    size = x.abs()
    borders = torch.from_numpy(codes.borders).to(x.dtype)
    low, high = (torch.searchsorted(borders, size, right=right) for right in (False, True))
    code = torch.where(low == high, low, low + (low & 1))
    code = torch.where(code > codes.last, codes.last if saturate else codes.beyond, code)
    sign = (x < 0) | ((x == 0) & (1 / x < 0))
    if not codes.negative_zero:
        # Its code 128, the one that zero's sign would give, is NaN.
        sign = sign & (code > 0) & (code < 128)
    code = torch.where(sign, code + 128, code)
    return torch.where(torch.isnan(x), codes.nan, code).to(torch.uint8)
