"""Element by element: arithmetic, comparisons, activations, changes of type."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tvmfuse.frontend.onnx.call import Call, Operator, Refusal
from tvmfuse.frontend.onnx.carried import convert
from tvmfuse.frontend.onnx.tensors import element_type


def _plain(function: Callable[..., Any]) -> Operator:
    """An operator without attributes that PyTorch has under the same meaning."""
    return lambda call, *inputs: function(*inputs)


def _div(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _mod(call: Call, a: Tensor, b: Tensor) -> Tensor:
    if call.attribute("fmod", 0):
        return torch.fmod(a, b)
    if not a.is_floating_point():
        return torch.remainder(a, b)
    # Not torch.remainder: the kernel made of it loses infinite divisors (a - floor(a / b) * b).
    rest = torch.fmod(a, b)
    return torch.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _pow(call: Call, base: Tensor, exponent: Tensor) -> Tensor:
    if 1 in call.known and exponent.numel() == 1 and base.is_floating_point():
        number = call.known[1].item()
        return torch.pow(base, number).reshape(torch.broadcast_shapes(base.shape, exponent.shape))
    return torch.pow(base, exponent).to(base.dtype)


def _folded(function: Callable[[Tensor, Tensor], Tensor]) -> Operator:
    return lambda call, *inputs: functools.reduce(function, inputs)


def _mean(call: Call, *inputs: Tensor) -> Tensor:
    return functools.reduce(torch.add, inputs) / len(inputs)


def _bit_shift(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """All bits are out, or are the sign, where ``b`` is the width or more, or negative."""
    last = 8 * a.element_size() - 1
    beyond = (b < 0) | (b > last)
    inside = torch.where(beyond, torch.full_like(b, last), b)
    if call.attribute("direction") == "LEFT":
        shifted = torch.bitwise_left_shift(a, inside)
    else:
        shifted = torch.bitwise_right_shift(a, inside)
        if a.dtype.is_signed:
            return shifted
    return torch.where(beyond, torch.zeros_like(shifted), shifted)


def _clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    if call.version < 11:
        low_high = call.attribute("min"), call.attribute("max")
        return x if low_high == (None, None) else torch.clamp(x, *low_high)
    for index, bound, apply, name in (
        (1, low, torch.maximum, "min"), (2, high, torch.minimum, "max"),
    ):  # fmt: skip
        if bound is None:
            continue
        if index in call.known:
            x = torch.clamp(x, **{name: call.known[index].item()})
        else:
            x = apply(x, bound)
    return x


def _is_inf(call: Call, x: Tensor) -> Tensor:
    found = torch.zeros_like(x, dtype=torch.bool)
    if call.attribute("detect_positive", 1):
        found = found | (x == float("inf"))
    if call.attribute("detect_negative", 1):
        found = found | (x == float("-inf"))
    return found


def _elu(call: Call, x: Tensor) -> Tensor:
    return F.elu(x, call.attribute("alpha", 1.0))


def _selu(call: Call, x: Tensor) -> Tensor:
    alpha = call.attribute("alpha", 1.6732632423543772)
    gamma = call.attribute("gamma", 1.0507009873554805)
    return gamma * F.elu(x, alpha)


def _thresholded(call: Call, x: Tensor) -> Tensor:
    return torch.where(x > call.attribute("alpha", 1.0), x, torch.zeros_like(x))


def _hard_sigmoid(call: Call, x: Tensor) -> Tensor:
    return torch.clamp(call.attribute("alpha", 0.2) * x + call.attribute("beta", 0.5), 0, 1)


def _shrink(call: Call, x: Tensor) -> Tensor:
    bias, edge = call.attribute("bias", 0.0), call.attribute("lambd", 0.5)
    zero = torch.zeros_like(x)
    low = torch.where(x < -edge, x + bias, zero)
    return torch.where(x > edge, x - bias, low).to(x.dtype)


def _prelu(call: Call, x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


def _gelu(call: Call, x: Tensor) -> Tensor:
    return F.gelu(x, approximate=call.attribute("approximate", "none"))


def _swish(call: Call, x: Tensor) -> Tensor:
    return x * torch.sigmoid(call.attribute("alpha", 1.0) * x)


def _dropout(call: Call, x: Tensor, ratio: Any = None, training: Any = None) -> Any:
    if training is not None and bool(call.array(2, "training_mode", (x, ratio, training))):
        given = call.array(1, "ratio", (x, ratio, training))
        if given is None or float(given):
            raise Refusal("it is in training mode, where it draws random numbers")
    mask = torch.ones_like(x, dtype=torch.bool)
    return (x.clone(), mask) if call.outputs > 1 else x.clone()


def _cast(call: Call, x: Tensor) -> Tensor:
    return _converted(call, x, element_type(call.attribute("to"), "its result"))


def _cast_like(call: Call, x: Tensor, like: Tensor) -> Tensor:
    return _converted(call, x, like.dtype)


def _converted(call: Call, x: Tensor, dtype: torch.dtype) -> Tensor:
    target = call.made[0] if call.made else None
    return convert(x, call.kinds.get(0), target, dtype, bool(call.attribute("saturate", 1)))


def _identity(call: Call, x: Any) -> Any:
    return x if isinstance(x, list) else x.clone()


def _sign(call: Call, x: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), x, torch.sign(x)) if x.is_floating_point() else x.sign()


OPERATORS: dict[str, Operator] = {
    "Abs": _plain(torch.abs), "Acos": _plain(torch.acos), "Acosh": _plain(torch.acosh),
    "Add": _plain(torch.add), "And": _plain(torch.logical_and), "Asin": _plain(torch.asin),
    "Asinh": _plain(torch.asinh), "Atan": _plain(torch.atan), "Atanh": _plain(torch.atanh),
    "BitShift": _bit_shift, "BitwiseAnd": _plain(torch.bitwise_and),
    "BitwiseNot": _plain(torch.bitwise_not), "BitwiseOr": _plain(torch.bitwise_or),
    "BitwiseXor": _plain(torch.bitwise_xor), "Cast": _cast, "CastLike": _cast_like,
    "Ceil": _plain(torch.ceil), "Clip": _clip, "Cos": _plain(torch.cos),
    "Cosh": _plain(torch.cosh), "Celu": lambda c, x: F.celu(x, c.attribute("alpha", 1.0)),
    "Div": _div, "Dropout": _dropout, "Elu": _elu, "Equal": _plain(torch.eq),
    "Erf": _plain(torch.erf), "Exp": _plain(torch.exp), "Floor": _plain(torch.floor),
    "Gelu": _gelu, "Greater": _plain(torch.gt), "GreaterOrEqual": _plain(torch.ge),
    "HardSigmoid": _hard_sigmoid, "HardSwish": _plain(F.hardswish), "Identity": _identity,
    "IsInf": _is_inf, "IsNaN": _plain(torch.isnan),
    "LeakyRelu": lambda c, x: F.leaky_relu(x, c.attribute("alpha", 0.01)),
    "Less": _plain(torch.lt), "LessOrEqual": _plain(torch.le), "Log": _plain(torch.log),
    "Max": _folded(torch.maximum), "Mean": _mean, "Min": _folded(torch.minimum),
    "Mish": _plain(F.mish), "Mod": _mod, "Mul": _plain(torch.mul), "Neg": _plain(torch.neg),
    "Not": _plain(torch.logical_not), "Or": _plain(torch.logical_or), "PRelu": _prelu,
    "Pow": _pow, "Reciprocal": _plain(torch.reciprocal), "Relu": _plain(torch.relu),
    "Round": _plain(torch.round), "Selu": _selu, "Shrink": _shrink,
    "Sigmoid": _plain(torch.sigmoid), "Sign": _sign, "Sin": _plain(torch.sin),
    "Sinh": _plain(torch.sinh), "Softplus": _plain(F.softplus),
    "Softsign": lambda c, x: x / (1 + x.abs()), "Sqrt": _plain(torch.sqrt),
    "Sub": _plain(torch.sub), "Sum": _folded(torch.add), "Swish": _swish,
    "Tan": _plain(torch.tan), "Tanh": _plain(torch.tanh), "ThresholdedRelu": _thresholded,
    "Where": _plain(torch.where), "Xor": _plain(torch.logical_xor),
}  # fmt: skip
