"""Build a module from a seed, with weights that exercise the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tvmfuse.errors import ImportModelError
from tvmfuse.frontend import weights as weights_io
from tvmfuse.frontend.loaded import weights_file

CALIBRATION_BATCH = 2


def build(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Call ``make`` with PyTorch's generator at ``seed``; it is put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


def fill(module: nn.Module, source: str, inputs: tuple[Any, ...], seed: int) -> None:
    """Give a fresh module its weights, in place.

    Parameters
    ----------
    module
        As its library initialises it, or with pretrained weights.
    source
        ``"random"``, ``"pretrained"`` (nothing is to be done), or a state dict's path.
    inputs
        On which random models calibrate their batch norms: a batch of at least two.
    seed
        Of the random values.
    """
    if source == "random":
        weights_io.randomize(module, seed)
        try:
            weights_io.calibrate(module.eval(), inputs, seed)
        except Exception as error:  # of any layer: the shapes are the user's
            tensors = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
            said = ", ".join(
                f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors
            )
            raise ImportModelError(
                f"the model does not run on {said}: {type(error).__name__}: {error}; give it other "
                "inputs with --shape (1,3,224,224 for an image)"
            ) from error
    elif source != "pretrained":
        weights_io.load_state_dict(module, weights_file(source))
