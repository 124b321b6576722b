"""Operators written with simpler ones, as functions on torch tensors; one family a file.

A decomposition takes the operator's own arguments and returns its result, by operators that the
importer gets right. It runs while the graph is traced, so that it is plain PyTorch and is tested
as such. Add a function to the file of its family and to that file's ``TABLE``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table

from tvmfuse.frontend.decompositions import (
    attention,
    convolutions,
    elementwise,
    reductions,
    resizing,
    sampling,
    scans,
    scattering,
    windows,
)

_FAMILIES = (
    attention, convolutions, elementwise, reductions, resizing, sampling, scans, scattering,
    windows,
)  # fmt: skip

# PyTorch has decompositions of these, but does not apply them by itself: TVM's converter is
# missing or wrong (nearest resizing to odd sizes), or its operator too special to fuse.
_FROM_PYTORCH = (
    "upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default",
    "upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec",
    "_upsample_nearest_exact1d.vec", "_upsample_nearest_exact2d.vec",
    "_upsample_nearest_exact3d.vec", "upsample_trilinear3d.vec", "pixel_shuffle.default",
    "pixel_unshuffle.default", "im2col.default", "col2im.default", "view_copy.default",
    "narrow_copy.default", "permute_copy.default", "unbind_copy.int", "dist.default",
    "isin.Tensor_Tensor", "renorm.default", "native_group_norm.default",
    "native_layer_norm.default", "native_batch_norm.default", "aminmax.default",
    "select_scatter.default", "slice_scatter.default", "split.Tensor", "unbind.int",
    "unsafe_split.Tensor", "frexp.Tensor", "roll.default", "tensor_split.indices",
)  # fmt: skip


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decomposition of each operator overload that we want, over all families."""
    ours = {operator: f for family in _FAMILIES for operator, f in family.TABLE.items()}
    return {**_from_pytorch(), **ours}


def _from_pytorch() -> dict[Any, Callable[..., Any]]:
    found = {}
    for name in _FROM_PYTORCH:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload, None)
        if operator in decomposition_table:
            found[operator] = decomposition_table[operator]
    return found
