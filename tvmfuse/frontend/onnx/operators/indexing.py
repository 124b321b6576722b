"""Reading and writing at places that tensors name."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tvmfuse.frontend.onnx.call import Call, Operator, Refusal, axis_in


def _places(indices: Tensor, extent: int) -> Tensor:
    """Indices as int64, the negative ones counted from the end."""
    indices = indices.long()
    return torch.where(indices < 0, indices + extent, indices)


def _gather(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = axis_in(call.attribute("axis", 0), x.ndim)
    flat = x.index_select(axis, _places(indices, x.shape[axis]).reshape(-1))
    return flat.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _gather_elements(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = axis_in(call.attribute("axis", 0), x.ndim)
    return torch.gather(x, axis, _places(indices, x.shape[axis]))


def _flat_places(extents: list[int], indices: Tensor) -> Tensor:
    """Index tuples in the last axis as places in the flattened leading axes."""
    place = torch.zeros_like(indices[..., 0], dtype=torch.int64)
    for axis, extent in enumerate(extents):
        place = place * extent + _places(indices[..., axis], extent)
    return place


def _gather_nd(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    batch, depth = call.attribute("batch_dims", 0), indices.shape[-1]
    leading = list(x.shape[batch : batch + depth])
    rows = math.prod(x.shape[:batch])
    place = _flat_places(leading, indices).reshape(rows, -1)
    place = place + torch.arange(rows)[:, None] * math.prod(leading)
    flat = x.reshape(rows * math.prod(leading), -1).index_select(0, place.reshape(-1))
    return flat.reshape((*indices.shape[:-1], *x.shape[batch + depth :]))


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter(x: Tensor, axis: int, places: Tensor, updates: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return torch.scatter(x, axis, places, updates)
    if reduction not in _REDUCTIONS:
        raise Refusal(f"has the reduction {reduction!r}; known are none, {', '.join(_REDUCTIONS)}")
    return torch.scatter_reduce(x, axis, places, updates, _REDUCTIONS[reduction])


def _scatter_elements(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = axis_in(call.attribute("axis", 0), x.ndim)
    places = _places(indices, x.shape[axis])
    return _scatter(x, axis, places, updates, call.attribute("reduction", "none"))


def _scatter_nd(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    leading = list(x.shape[: indices.shape[-1]])
    flat = x.reshape(math.prod(leading), -1)
    places = _flat_places(leading, indices).reshape(-1, 1).expand(-1, flat.shape[1])
    values = updates.reshape(places.shape)
    found = _scatter(flat, 0, places, values, call.attribute("reduction", "none"))
    return found.reshape(x.shape)


def _one_hot(call: Call, *inputs: Any) -> Tensor:
    indices, _, values = inputs
    depth = int(call.required(1, "depth", inputs).item())
    axis = axis_in(call.attribute("axis", -1), indices.ndim + 1)
    wanted = _places(indices, depth).unsqueeze(axis)
    places = torch.arange(depth).reshape([-1] + [1] * (indices.ndim - axis))
    return torch.where(wanted == places, values[1], values[0])


def _reverse_sequence(call: Call, x: Tensor, lengths: Tensor) -> Tensor:
    time, batch = call.attribute("time_axis", 0), call.attribute("batch_axis", 1)
    step = torch.arange(x.shape[time])[:, None]
    lengths = lengths.long()[None]
    places = torch.where(step < lengths, lengths - 1 - step, step)
    places = places if time < batch else places.T
    view = [x.shape[a] if a in (time, batch) else 1 for a in range(x.ndim)]
    return torch.gather(x, time, places.reshape(view).expand(x.shape))


def _compress(call: Call, *inputs: Any) -> Tensor:
    x = inputs[0]
    condition = call.required(1, "condition", inputs)
    axis = call.attribute("axis")
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis_in(axis, x.ndim))
    chosen = torch.tensor([i for i, taken in enumerate(condition.tolist()) if taken])
    return x.index_select(axis, chosen.long())


def _non_zero(call: Call, x: Tensor) -> Tensor:
    return torch.nonzero(x).T.contiguous()


def _unique(call: Call, x: Tensor) -> tuple[Tensor, ...]:
    import numpy as np

    values, first, inverse, counts = np.unique(
        x.numpy(), True, True, True, axis=call.attribute("axis")
    )
    if not call.attribute("sorted", 1):
        raise Refusal("it is not sorted")
    return tuple(
        torch.from_numpy(np.ascontiguousarray(a)) for a in (values, first, inverse, counts)
    )


OPERATORS: dict[str, Operator] = {
    "Compress": _compress, "Gather": _gather, "GatherElements": _gather_elements,
    "GatherND": _gather_nd, "OneHot": _one_hot, "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements, "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd,
}  # fmt: skip

DATA_DEPENDENT: dict[str, Operator] = {"NonZero": _non_zero, "Unique": _unique}
