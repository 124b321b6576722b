"""Sequences of tensors: Python lists while the graph is planned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tvmfuse.frontend.onnx.call import Call, Operator, axis_in


def _at(call: Call, *inputs: Any) -> Tensor:
    return inputs[0][int(call.required(1, "position", inputs).item())].clone()


def _insert(call: Call, *inputs: Any) -> list[Tensor]:
    parts = list(inputs[0])
    given = call.array(2, "position", inputs)
    place = len(parts) if given is None else int(given.item())
    parts.insert(place, inputs[1])
    return parts


def _erase(call: Call, *inputs: Any) -> list[Tensor]:
    parts = list(inputs[0])
    given = call.array(1, "position", inputs)
    del parts[-1 if given is None else int(given.item())]
    return parts


def _concat(call: Call, parts: list[Tensor]) -> Tensor:
    axis, new = call.attribute("axis"), call.attribute("new_axis", 0)
    if new:
        return torch.stack(parts, axis_in(axis, parts[0].ndim + 1))
    return torch.cat(parts, axis_in(axis, parts[0].ndim))


def _split(call: Call, *inputs: Any) -> list[Tensor]:
    x = inputs[0]
    axis = axis_in(call.attribute("axis", 0), x.ndim)
    sizes = call.array(1, "split", inputs)
    if sizes is None:
        parts = list(torch.split(x, 1, axis))
        keep = call.attribute("keepdims", 1)
        return parts if keep else [p.squeeze(axis) for p in parts]
    return list(torch.split(x, sizes.tolist(), axis))


OPERATORS: dict[str, Operator] = {
    "ConcatFromSequence": _concat, "SequenceAt": _at,
    "SequenceConstruct": lambda c, *parts: list(parts), "SequenceEmpty": lambda c: [],
    "SequenceErase": _erase, "SequenceInsert": _insert,
    "SequenceLength": lambda c, parts: torch.tensor(len(parts)), "SplitToSequence": _split,
}  # fmt: skip
