"""Shapes, layouts, constants: what moves or makes elements without computing on them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tvmfuse.frontend.onnx.call import Call, Operator, Refusal, axis_in
from tvmfuse.frontend.onnx.tensors import element_type


def _reshape(call: Call, *inputs: Any) -> Tensor:
    x = inputs[0]
    wanted = call.setting(1, "shape", inputs)
    if not call.attribute("allowzero", 0):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    if -1 in wanted and 0 in wanted:
        raise Refusal(f"the shape {wanted} does not say how long its axis -1 is")
    return x.reshape(wanted)


def _transpose(call: Call, x: Tensor) -> Tensor:
    return x.permute(call.attribute("perm") or list(range(x.ndim))[::-1])


def _flatten(call: Call, x: Tensor) -> Tensor:
    axis = call.attribute("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _squeeze(call: Call, *inputs: Any) -> Tensor:
    x = inputs[0]
    axes = call.setting(1, "axes", inputs)
    if axes is None:
        axes = [i for i, n in enumerate(x.shape) if n == 1]
    gone = {axis_in(a, x.ndim) for a in axes}
    if any(x.shape[a] != 1 for a in gone):
        raise Refusal(f"the axes {sorted(gone)} of the shape {tuple(x.shape)} are not all 1 long")
    return x.reshape([n for i, n in enumerate(x.shape) if i not in gone])


def _unsqueeze(call: Call, *inputs: Any) -> Tensor:
    x = inputs[0]
    axes = call.setting(1, "axes", inputs)
    rank = x.ndim + len(axes)
    for axis in sorted(axis_in(a, rank) for a in axes):
        x = x.unsqueeze(axis)
    return x


def _concat(call: Call, *inputs: Tensor) -> Tensor:
    return torch.cat(inputs, axis_in(call.attribute("axis", 1), inputs[0].ndim))


def _split(call: Call, *inputs: Any) -> tuple[Tensor, ...]:
    x = inputs[0]
    axis = axis_in(call.attribute("axis", 0), x.ndim)
    sizes = call.setting(1, "split", inputs)
    if sizes is None:
        parts = call.attribute("num_outputs", call.outputs)
        each = -(-x.shape[axis] // parts)
        sizes = [each] * (parts - 1) + [x.shape[axis] - each * (parts - 1)]
    return tuple(torch.split(x, sizes, axis))


def _slice(call: Call, *inputs: Any) -> Tensor:
    x = inputs[0]
    starts, ends = call.setting(1, "starts", inputs), call.setting(2, "ends", inputs)
    axes = call.setting(3, "axes", inputs) or list(range(len(starts)))
    steps = call.setting(4, "steps", inputs) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = axis_in(axis, x.ndim)
        places = range(x.shape[axis])[slice(start, _end(end, step, x.shape[axis]), step)]
        if step > 0:
            x = _forward(x, axis, places)
        else:
            back = places[::-1]
            x = torch.flip(_forward(x, axis, back), (axis,))
    return x


def _end(end: int, step: int, extent: int) -> int | None:
    """NumPy's end; going backwards, an end before the first element means: all of them."""
    return None if step < 0 and end < -extent else end


def _forward(x: Tensor, axis: int, places: range) -> Tensor:
    if len(places) == 0:
        return x.narrow(axis, 0, 0)
    window = (slice(None),) * axis + (slice(places.start, places[-1] + 1, places.step),)
    return x[window]


def _pad(call: Call, *inputs: Any) -> Tensor:
    x = inputs[0]
    pads = call.setting(1, "pads", inputs)
    axes = call.setting(3, "axes", inputs) or list(range(x.ndim))
    before = dict(zip((axis_in(a, x.ndim) for a in axes), pads[: len(axes)], strict=True))
    after = dict(zip((axis_in(a, x.ndim) for a in axes), pads[len(axes) :], strict=True))
    mode = call.attribute("mode", "constant")
    if mode == "constant":
        value = call.setting(2, "constant_value", inputs, call.attribute("value", 0))
        value = value[0] if isinstance(value, list) else value
        flat = [n for a in reversed(range(x.ndim)) for n in (before.get(a, 0), after.get(a, 0))]
        if x.dtype == torch.bool:
            return F.pad(x.to(torch.uint8), flat, value=int(value)).bool()
        return F.pad(x, flat, value=value)
    for axis in before:
        x = x.index_select(axis, _mirrored(mode, x.shape[axis], before[axis], after[axis]))
    return x


def _mirrored(mode: str, extent: int, before: int, after: int) -> Tensor:
    places = range(-before, extent + after)
    if mode == "edge":
        found = [min(max(p, 0), extent - 1) for p in places]
    elif mode == "wrap":
        found = [p % extent for p in places]
    elif mode == "reflect":
        period = max(2 * (extent - 1), 1)
        found = [min(p % period, period - p % period) if extent > 1 else 0 for p in places]
    else:
        raise Refusal(f"has the mode {mode!r}; known are constant, edge, reflect and wrap")
    return torch.tensor(found)


def _expand(call: Call, *inputs: Any) -> Tensor:
    x = inputs[0]
    shape = torch.broadcast_shapes(x.shape, call.setting(1, "shape", inputs))
    return x.expand(shape).clone()


def _tile(call: Call, *inputs: Any) -> Tensor:
    return inputs[0].repeat(call.setting(1, "repeats", inputs))


def _shape(call: Call, x: Tensor) -> Tensor:
    return torch.tensor(
        list(x.shape)[call.attribute("start", 0) : call.attribute("end")], dtype=torch.int64
    )


def _size(call: Call, x: Tensor) -> Tensor:
    return torch.tensor(x.numel())


def _constant(call: Call) -> Tensor:
    for name, value in call.attributes.items():
        if name == "value":
            return value
        if name.startswith(("value_float", "value_int")):
            return torch.tensor(value, dtype=torch.float32 if "float" in name else torch.int64)
    raise Refusal("it is sparse or a text")


def _constant_of_shape(call: Call, *inputs: Any) -> Tensor:
    value = call.attribute("value", torch.zeros(1))
    return torch.full(call.setting(0, "input", inputs), value.item(), dtype=value.dtype)


def _eye_like(call: Call, x: Tensor) -> Tensor:
    rows, columns = x.shape
    kind = call.attribute("dtype")
    dtype = x.dtype if kind is None else element_type(kind, "its result")
    places = torch.arange(columns)[None] - torch.arange(rows)[:, None]
    return (places == call.attribute("k", 0)).to(dtype)


def _range(call: Call, *inputs: Any) -> Tensor:
    arrays = [call.required(i, n, inputs) for i, n in enumerate(("start", "limit", "delta"))]
    start, limit, delta = (a.item() for a in arrays)
    count = max(math.ceil((limit - start) / delta), 0)
    return (torch.arange(count) * delta + start).to(inputs[0].dtype)


def _trilu(call: Call, *inputs: Any) -> Tensor:
    x = inputs[0]
    given = call.array(1, "k", inputs)
    offset = 0 if given is None else int(given.item())
    places = torch.arange(x.shape[-1])[None] - torch.arange(x.shape[-2])[:, None]
    kept = places >= offset if call.attribute("upper", 1) else places <= offset
    return torch.where(kept, x, torch.zeros_like(x))


def _depth_to_space(call: Call, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = call.attribute("blocksize")
    if call.attribute("mode", "DCR") == "DCR":
        x = x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return x.reshape(n, c // b**2, h * b, w * b)


def _space_to_depth(call: Call, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = call.attribute("blocksize")
    x = x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4)
    return x.reshape(n, c * b * b, h // b, w // b)


def _has_element(call: Call, x: Any = None) -> Tensor:
    return torch.tensor(x is not None)


OPERATORS: dict[str, Operator] = {
    "Concat": _concat, "Constant": _constant, "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space, "Expand": _expand, "EyeLike": _eye_like,
    "Flatten": _flatten, "Pad": _pad, "OptionalGetElement": lambda c, x: x,
    "OptionalHasElement": _has_element, "Range": _range, "Reshape": _reshape, "Shape": _shape,
    "Size": _size, "Slice": _slice, "SpaceToDepth": _space_to_depth, "Split": _split,
    "Squeeze": _squeeze, "Tile": _tile, "Transpose": _transpose, "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}  # fmt: skip
