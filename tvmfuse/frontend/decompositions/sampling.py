"""Sampling a volume at given places: gathers of corners and their weights.

Follows ``aten/src/ATen/native/GridSampler.h``; in two dimensions TVM has its own.
"""

from __future__ import annotations

import itertools

import torch

_ATEN = torch.ops.aten

_BILINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _unnormalised(place: torch.Tensor, size: int, align: bool) -> torch.Tensor:
    return (place + 1) / 2 * (size - 1) if align else ((place + 1) * size - 1) / 2


def _reflected(place: torch.Tensor, size: int, align: bool) -> torch.Tensor:
    low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
    if span == 0:
        return torch.zeros_like(place)
    away = (place - low).abs()
    turns = torch.floor(away / span)
    rest = away - turns * span
    even = turns - 2 * torch.floor(turns / 2) == 0
    return torch.where(even, rest + low, span - rest + low)


def _sources(place: torch.Tensor, size: int, padding: int, align: bool) -> torch.Tensor:
    place = _unnormalised(place, size, align)
    if padding == _REFLECTION:
        place = _reflected(place, size, align)
    return place if padding == _ZEROS else place.clamp(0, size - 1)


def grid_sampler_3d(
    x: torch.Tensor,
    grid: torch.Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> torch.Tensor:
    """Values of a volume at the places of ``grid`` [N, D, H, W, (x, y, z)]."""
    batch, channels, *sizes = x.shape
    places = [
        _sources(grid[..., 2 - axis], size, padding_mode, align_corners)
        for axis, size in enumerate(sizes)
    ]
    flat = x.reshape(batch, channels, -1)

    def corner(index: list[torch.Tensor]) -> torch.Tensor:
        inside = torch.ones_like(index[0], dtype=torch.bool)
        place = torch.zeros_like(index[0], dtype=torch.int64)
        for along, size in zip(index, sizes, strict=True):
            inside = inside & (along >= 0) & (along < size)
            place = place * size + along.clamp(0, size - 1).to(torch.int64)
        wide = place.reshape(batch, 1, -1).expand(batch, channels, -1)
        taken = torch.gather(flat, 2, wide).reshape(batch, channels, *place.shape[1:])
        return torch.where(inside.unsqueeze(1), taken, 0.0)

    if interpolation_mode == _NEAREST:
        return corner([torch.round(p) for p in places])
    floors = [torch.floor(p) for p in places]
    total = torch.zeros([])
    for high in itertools.product((0, 1), repeat=3):
        weight = torch.ones([])
        for p, f, h in zip(places, floors, high, strict=True):
            weight = weight * (p - f if h else f + 1 - p)
        index = [f + h for f, h in zip(floors, high, strict=True)]
        total = total + corner(index) * weight.unsqueeze(1)
    return total


TABLE = {_ATEN.grid_sampler_3d.default: grid_sampler_3d}
