"""Scatters and gathers by ``scatter_reduce`` with its target included, and by index vectors."""

from __future__ import annotations

import torch

_ATEN = torch.ops.aten

_IDENTITY = {"sum": 0.0, "mean": 0.0, "prod": 1.0}


def scatter_reduce(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> torch.Tensor:
    """All reductions with or without the target's own values."""
    if x.ndim == 0:
        wide = [t.reshape(1) for t in (x, index, src)]
        return scatter_reduce(wide[0], 0, wide[1], wide[2], reduce, include_self=include_self)[0]
    src = _same_window(src, index)
    start = x
    if not include_self:
        start = torch.scatter(x, dim, index, _identity(reduce, x.dtype))
    if reduce != "mean":
        return _ATEN.scatter_reduce.two(start, dim, index, src, reduce)
    total = _ATEN.scatter_add.default(start, dim, index, src)
    own = torch.ones_like(x)
    if not include_self:
        own = torch.scatter(own, dim, index, 0)
    count = _ATEN.scatter_add.default(own, dim, index, torch.ones_like(src))
    count = torch.where(count == 0, 1, count)
    if x.is_floating_point():
        return total / count
    return torch.div(total, count, rounding_mode="floor")


def plain_scatter_reduce(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> torch.Tensor:
    """What the converter takes stays: the target included, no mean."""
    if include_self and reduce != "mean" and x.ndim:
        return NotImplemented
    return scatter_reduce(x, dim, index, src, reduce, include_self=include_self)


def _same_window(src: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Only that part of the source is read which the index covers."""
    for axis, extent in enumerate(index.shape):
        src = src.narrow(axis, 0, extent)
    return src


def _identity(reduce: str, dtype: torch.dtype) -> float:
    if reduce in _IDENTITY:
        return _IDENTITY[reduce]
    if dtype.is_floating_point:
        return float("-inf") if reduce == "amax" else float("inf")
    if dtype == torch.bool:
        return float(reduce == "amin")
    limits = torch.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max


def scatter_named(
    x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, *, reduce: str
) -> torch.Tensor:
    """The older spelling, ``add`` or ``multiply``."""
    word = {"add": "sum", "multiply": "prod"}[reduce]
    return torch.scatter_reduce(x, dim, index, src, word)


def scatter_value_named(
    x: torch.Tensor, dim: int, index: torch.Tensor, value: float, *, reduce: str
) -> torch.Tensor:
    """The older spelling with one value."""
    return scatter_named(x, dim, index, x.new_full(index.shape, value), reduce=reduce)


def index_reduce(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> torch.Tensor:
    """Reduce whole slices."""
    if x.ndim == 0:
        wide = [t.reshape(-1) for t in (x, index, source)]
        found = index_reduce(wide[0], 0, wide[1], wide[2], reduce, include_self=include_self)
        return found.reshape(())
    shape = [1] * source.ndim
    shape[dim] = -1
    places = index.reshape(shape).expand(source.shape)
    return scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


def masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """The next value of the source wherever the mask is set."""
    x, mask = torch.broadcast_tensors(x, mask)
    place = torch.cumsum(mask.reshape(-1).to(torch.int64), 0) - 1
    place = place.clamp(0, source.numel() - 1)
    taken = source.reshape(-1)[place].reshape(x.shape)
    return torch.where(mask, taken, x)


def put(
    x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """Write at places of the flattened tensor."""
    flat, places = x.reshape(-1), index.reshape(-1)
    places = torch.where(places < 0, places + x.numel(), places)
    values = source.reshape(-1)
    if accumulate:
        return torch.scatter_add(flat, 0, places, values).reshape(x.shape)
    return torch.scatter(flat, 0, places, values).reshape(x.shape)


def masked_put(
    x: torch.Tensor,
    indices: list[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor:
    """Write one value (or one for each trailing place) wherever a mask is set: a choice.

    As many values as the mask has ones would depend on the data; the importer refuses that.
    Booleans are summed as integers.
    """
    if accumulate and x.dtype == torch.bool:
        summed = torch.ops.aten.index_put.default(
            x.to(torch.int32), indices, values.to(torch.int32), True
        )
        return summed != 0
    masks = [i for i, index in enumerate(indices) if index is not None]
    mask = indices[masks[0]] if len(masks) == 1 else None
    if mask is None or mask.dtype not in (torch.bool, torch.uint8):
        return NotImplemented
    trailing = x.ndim - masks[0] - mask.ndim
    rows = values.shape[: max(0, values.ndim - trailing)]
    if masks[0] or any(extent != 1 for extent in rows):
        return NotImplemented
    value = values.reshape(values.shape[len(rows) :]).to(x.dtype)
    wide = mask.to(torch.bool).reshape([*mask.shape, *[1] * trailing])
    return torch.where(wide, x + value if accumulate else value, x)


def diagonal_scatter(
    x: torch.Tensor, src: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    """Replace a diagonal."""
    rows, columns = x.shape[dim1], x.shape[dim2]
    r = torch.arange(rows, device=x.device).reshape(-1, 1)
    c = torch.arange(columns, device=x.device).reshape(1, -1)
    along = (r if offset >= 0 else c).expand(rows, columns).reshape(-1)
    rest = [i for i in range(x.ndim) if i not in (dim1 % x.ndim, dim2 % x.ndim)]
    order = [*rest, dim1 % x.ndim, dim2 % x.ndim]
    moved = x.permute(order)
    if src.shape[-1] == 0:
        return x.clone()
    wide = src[..., along.clamp(max=src.shape[-1] - 1)].reshape(moved.shape)
    result = torch.where(c - r == offset, wide, moved)
    return result.permute([order.index(i) for i in range(x.ndim)])


def searchsorted(
    sequence: torch.Tensor,
    values: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    """Count the smaller entries: one comparison each, in one reduction."""
    if sorter is not None:
        sequence = torch.gather(sequence, -1, sorter)
    if side is not None:
        right = side == "right"
    entries = sequence.unsqueeze(-2) if sequence.ndim > 1 else sequence
    wanted = values.unsqueeze(-1)
    # NaN stands behind everything: the entries that are not greater are the smaller ones.
    before = ~(entries > wanted) if right else ~(entries >= wanted)
    return before.to(torch.int32 if out_int32 else torch.int64).sum(
        -1, dtype=torch.int32 if out_int32 else torch.int64
    )


def searchsorted_scalar(sequence: torch.Tensor, value: float, **options: object) -> torch.Tensor:
    """The same for one number."""
    dtype = torch.result_type(sequence, value)
    one = torch.full([], value, dtype=dtype, device=sequence.device)
    return searchsorted(sequence, one, **options)  # type: ignore[arg-type]


def bucketize(
    values: torch.Tensor,
    boundaries: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> torch.Tensor:
    """Index of the bucket."""
    return searchsorted(boundaries, values, out_int32=out_int32, right=right)


def _flat_places(size: list[int], stride: list[int], offset: int | None) -> torch.Tensor:
    place = torch.full([1] * len(size), offset or 0)
    for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * len(size)
        shape[axis] = extent
        place = place + (torch.arange(extent) * step).reshape(shape)
    return place


def as_strided(
    x: torch.Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Any view of contiguous memory, read at constant places."""
    return x.reshape(-1)[_flat_places(size, stride, storage_offset)]


def as_strided_scatter(
    x: torch.Tensor,
    src: torch.Tensor,
    size: list[int],
    stride: list[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """Write such a view."""
    places = _flat_places(size, stride, storage_offset).reshape(-1)
    return torch.scatter(x.reshape(-1), 0, places, src.reshape(-1)).reshape(x.shape)


def take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Places of the flattened tensor, from the end where they are negative."""
    return x.reshape(-1)[torch.where(index < 0, index + x.numel(), index)]


def join(tensors: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """Concatenation may hold empty tensors of one dimension, which count for nothing."""
    rank = max(t.ndim for t in tensors)
    kept = [t for t in tensors if t.ndim == rank or t.shape != (0,)]
    return torch.cat(kept, dim) if len(kept) < len(tensors) else NotImplemented


def cdist(
    one: torch.Tensor, other: torch.Tensor, p: float, compute_mode: int | None
) -> torch.Tensor:
    """Distance of every pair of rows; the differences live in one fused reduction."""
    return _length(one.unsqueeze(-2) - other.unsqueeze(-3), p)


def _length(difference: torch.Tensor, p: float) -> torch.Tensor:
    size = difference.abs()
    if p == 0:
        return (size != 0).to(size.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == float("inf"):
        return size.amax(-1)
    if p == 2:
        return (size * size).sum(-1).sqrt()
    return size.pow(p).sum(-1).pow(1 / p)


def pdist(x: torch.Tensor, p: float = 2) -> torch.Tensor:
    """Distance of every pair of different rows."""
    count = x.shape[0]
    if count < 2:
        return x.new_zeros(0)
    first = torch.cat([torch.full([count - 1 - i], i) for i in range(count - 1)])
    second = torch.cat([torch.arange(i + 1, count) for i in range(count - 1)])
    return _length(x[first] - x[second], p)


def embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sum, mean (1) or maximum (2) of the rows of each bag."""
    bags = offsets.shape[0] - int(include_last_offset)
    place = torch.arange(indices.shape[0], device=indices.device, dtype=offsets.dtype)
    bag = (offsets[:bags].unsqueeze(0) <= place.unsqueeze(1)).to(torch.int64).sum(1) - 1
    counted = (
        torch.ones_like(indices) if padding_idx < 0 else (indices != padding_idx).to(indices.dtype)
    )
    size = torch.zeros(bags, dtype=torch.int64).scatter_add(0, bag, counted.to(torch.int64))
    rows = weight[indices]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    wide = bag.unsqueeze(1).expand(rows.shape)
    valid = (counted != 0).unsqueeze(1)
    start = torch.zeros(bags, weight.shape[1], dtype=weight.dtype)
    if mode == 2:
        low = torch.full_like(start, float("-inf"))
        rows = torch.where(valid, rows, float("-inf"))
        best = torch.scatter_reduce(low, 0, wide, rows, "amax")
        result = torch.where((size == 0).unsqueeze(1), 0.0, best)
    else:
        rows = torch.where(valid, rows, 0.0)
        result = torch.scatter_add(start, 0, wide, rows)
        if mode == 1:
            result = result / size.clamp(min=1).unsqueeze(1).to(weight.dtype)
    return result, bag, size, size


TABLE = {
    _ATEN.as_strided.default: as_strided,
    _ATEN.as_strided_copy.default: as_strided,
    _ATEN.as_strided_scatter.default: as_strided_scatter,
    _ATEN.take.default: take,
    _ATEN.cat.default: join,
    _ATEN.index_put.default: masked_put,
    _ATEN.scatter_reduce.two: plain_scatter_reduce,
    _ATEN.scatter.reduce: scatter_named,
    _ATEN.scatter.value_reduce: scatter_value_named,
    _ATEN.index_reduce.default: index_reduce,
    _ATEN.masked_scatter.default: masked_scatter,
    _ATEN.put.default: put,
    _ATEN.diagonal_scatter.default: diagonal_scatter,
    _ATEN.searchsorted.Tensor: searchsorted,
    _ATEN.searchsorted.Scalar: searchsorted_scalar,
    _ATEN.bucketize.Tensor: bucketize,
    _ATEN._cdist_forward.default: cdist,
    _ATEN._pdist_forward.default: pdist,
    _ATEN._embedding_bag.default: embedding_bag,
    _ATEN._embedding_bag_forward_only.default: embedding_bag,
}
