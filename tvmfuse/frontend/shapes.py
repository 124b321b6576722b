"""Example inputs: made from ``--shape`` and ``--batch``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tvmfuse.errors import OptionError

_INTEGER_HIGH = 10  # drawn integers stay below it: legal token ids and class labels nearly always


Wanted = tuple[tuple[int, ...], torch.dtype | None]  # extents, and the type where it is said


def parse_shapes(text: str | Sequence[int]) -> list[Wanted]:
    """Read ``"1,3,224,224"``, ``"1x128:int64;1x128:int64"`` or a sequence of integers.

    Raises
    ------
    OptionError
        The text is none of these, or an extent is not positive.
    """
    if not isinstance(text, str):
        return [(_extents(list(map(str, text)), str(tuple(text))), None)]
    return [_parse_one(part.strip()) for part in text.split(";")]


def _parse_one(text: str) -> Wanted:
    extents, colon, dtype_name = text.partition(":")
    dtype = getattr(torch, dtype_name.strip(), None) if colon else None
    if colon and not isinstance(dtype, torch.dtype):
        raise OptionError(f"--shape {text!r}: {dtype_name!r} is no element type of torch")
    return _extents(extents.replace("x", ",").split(","), text), dtype


def _extents(parts: list[str], text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in parts)
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise OptionError(
            f"--shape {text!r} is not a list of positive integers; write 1,3,224,224, more "
            "inputs after ';', another element type after ':' (1,128:int64)"
        )
    return shape


def make_inputs(
    shapes: list[Wanted], batch: int | None, seed: int, like: Any = None
) -> tuple[torch.Tensor, ...]:
    """Draw one tensor a shape; ``batch`` replaces the first extent of each.

    A type that is not said is that of the tensor at the same place in ``like``, or float32.
    """
    generator = torch.Generator().manual_seed(seed)
    made = []
    tensors = [t for t in pytree.tree_leaves(like) if isinstance(t, torch.Tensor)]
    for number, (shape, said) in enumerate(shapes):
        dtype = said or (tensors[number].dtype if number < len(tensors) else torch.float32)
        extents = shape if batch is None else (batch, *shape[1:])
        if dtype == torch.bool:
            made.append(torch.randint(0, 2, extents, generator=generator).bool())
        elif dtype.is_floating_point:
            made.append(torch.randn(extents, generator=generator).to(dtype))
        else:
            made.append(torch.randint(0, _INTEGER_HIGH, extents, generator=generator, dtype=dtype))
    return tuple(made)


def replaced(
    inputs: tuple[Any, ...], shapes: list[Wanted], batch: int | None, seed: int
) -> tuple[Any, ...]:
    """Example inputs with a drawn tensor in the place of each of their tensors.

    Raises
    ------
    OptionError
        There are more or fewer shapes than tensors.
    """
    leaves, tree = pytree.tree_flatten(inputs)
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if len(places) != len(shapes):
        raise OptionError(
            f"--shape names {len(shapes)} tensors, the model takes {len(places)}, some by keyword: "
            "give a shape for each, in the order of the parameters of forward"
        )
    drawn = make_inputs(shapes, batch, seed, like=inputs)
    for place, tensor in zip(places, drawn, strict=True):
        leaves[place] = tensor
    return pytree.tree_unflatten(leaves, tree)


def rebatch(inputs: tuple[Any, ...], batch: int) -> tuple[Any, ...]:
    """Repeat or cut the rows of example inputs to ``batch``; values stay legal ones.

    Raises
    ------
    OptionError
        The tensors do not share one first extent, so which axis is the batch is unknown.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    extents = {t.shape[0] if t.ndim else None for t in tensors}
    if len(extents) != 1 or None in extents:
        shapes = [tuple(t.shape) for t in tensors]
        raise OptionError(
            f"--batch {batch} cannot be applied to example inputs of the shapes {shapes}: their "
            "first extents differ; return inputs with the wanted batch instead"
        )

    def rows(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf[torch.arange(batch) % leaf.shape[0]]

    return pytree.tree_map(rows, inputs)
