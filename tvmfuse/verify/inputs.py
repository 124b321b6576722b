"""The inputs that a model is tried on: its example, drawn ones, and the edges of the type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

_LARGE = 1e3
_OFFSET = 8e4  # a common offset of this size leaves float32 two digits behind the point
_DENORMAL = 1e-39  # below float32's smallest normal number, 1.2e-38

# At the type's largest number sums overflow, and where depends on the order of summation.
_OVERFLOWING = frozenset(("max",))
_SUMS = ("conv", "linear", "mm", "bmm", "matmul", "einsum", "sum", "mean", "var", "std", "norm",
         "avg_pool", "prod", "dot", "attention", "pdist", "cdist", "trace", "upsample",
         "interpolate",
         "lstm", "gru", "rnn")  # fmt: skip


def at_limit(kind: str) -> bool:
    """Whether inputs of this kind are of the size of the type's largest number."""
    return kind in _OVERFLOWING


def overflows(kind: str, program: Any) -> bool:
    """Whether eager is no reference for inputs of this kind: the program sums what is too large.

    A program that is not known may sum.
    """
    if kind not in _OVERFLOWING:
        return False
    if program is None:
        return True
    names = (str(n.target) for n in program.graph.nodes if n.op == "call_function")
    return any(word in name for name in names for word in _SUMS)


def edge_inputs(example_inputs: tuple[Any, ...], seed: int) -> dict[str, tuple[Any, ...]]:
    """Return the input sets by kind; integer inputs keep the example's values in all of them."""
    # Not the seed itself: example inputs are often drawn from it already.
    generator = torch.Generator().manual_seed(seed + 1)

    def each(change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
        def leaf(value: Any) -> Any:
            floating = isinstance(value, torch.Tensor) and value.is_floating_point()
            return change(value.detach()) if floating else value

        return pytree.tree_map(leaf, example_inputs)

    def drawn(value: torch.Tensor) -> torch.Tensor:
        return torch.randn(value.shape, generator=generator).to(value.dtype)

    kinds = {"example": example_inputs}
    floats = [
        leaf
        for leaf in pytree.tree_leaves(example_inputs)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    if not floats:
        return kinds
    return kinds | {
        "random": each(drawn),
        "zeros": each(torch.zeros_like),
        "ones": each(torch.ones_like),
        "large": each(lambda value: drawn(value) * _LARGE),
        "offset": each(lambda value: drawn(value) + _OFFSET),
        "constant_channels": each(lambda value: _constant_channels(drawn(value))),
        "max": each(_largest),
        "denormal": each(lambda value: drawn(value) * _DENORMAL),
        "nan": each(lambda value: _poisoned(drawn(value), float("nan"))),
        "inf": each(lambda value: _poisoned(drawn(value), float("inf"))),
    }


def _constant_channels(value: torch.Tensor) -> torch.Tensor:
    """Every channel (or row, of a matrix) constant: norms divide by their epsilon alone."""
    axes = tuple(range(2, value.ndim)) or (-1,)
    if value.ndim == 0 or value.numel() == 0:
        return value
    return value.mean(axes, keepdim=True).expand_as(value).contiguous()


def _largest(value: torch.Tensor) -> torch.Tensor:
    """The type's largest number with alternating sign."""
    flat = torch.full((value.numel(),), torch.finfo(value.dtype).max, dtype=value.dtype)
    flat[1::2] *= -1
    return flat.reshape(value.shape)


def _poisoned(value: torch.Tensor, bad: float) -> torch.Tensor:
    if value.numel():
        value.view(-1)[value.numel() // 2] = bad
    return value
