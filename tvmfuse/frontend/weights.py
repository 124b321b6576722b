"""Weights: seeded random values that exercise the compiler, or a state dict from a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tvmfuse.errors import ImportModelError

_WRAPPER_KEYS = ("state_dict", "model")
_SHOWN = 8
_TINY_LEVEL = 1e-2
_LEAST_VARIANCE = 1e-3


def randomize(module: nn.Module, seed: int) -> None:
    """Replace initial values that hide faults, in place.

    A fresh batch norm is nearly the identity, zero-initialised heads make the output vanish and
    layer scales of 1e-6 make whole blocks invisible: a wrong fold or kernel would go unnoticed.
    Parameters that are constant are drawn anew, and so are running statistics.
    """
    draw = _Draw(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            draw.enliven(parameter)
        for norm in _batch_norms(module):
            draw.uniform(norm.running_mean, -0.1, 0.1)
            draw.uniform(norm.running_var, 0.5, 1.5)


def calibrate(module: nn.Module, inputs: tuple[torch.Tensor, ...], seed: int) -> None:
    """Set running statistics to those of ``inputs``, up to a seeded disturbance, in place.

    Without it the signal of a deep random network dies out or explodes, and its output no
    longer depends on its input.

    Parameters
    ----------
    module
        In evaluation mode; its batch norms see a batch of at least two.
    inputs
        Positional arguments.
    seed
        Of the disturbance: variance times 0.5 to 1.5, mean by a tenth of the deviation.
    """
    norms = _batch_norms(module)
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    with torch.no_grad():
        if norms:
            module(*inputs)
        draw = _Draw(seed)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.eval()
            norm.momentum = momentum
            norm.running_var.clamp_(min=_LEAST_VARIANCE)
            shift, stretch = torch.empty_like(norm.running_mean), torch.empty_like(norm.running_var)
            draw.uniform(shift, -0.1, 0.1)
            draw.uniform(stretch, 0.5, 1.5)
            norm.running_mean.add_(shift * norm.running_var.sqrt())
            norm.running_var.mul_(stretch)
            norm.num_batches_tracked.zero_()


def reset_random(module: nn.Module, seed: int) -> None:
    """Draw all parameters of ``module`` anew, each layer by its own initialiser."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for part in module.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
    randomize(module, seed)


class _Draw:
    """Seeded values, written into tensors in place."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def uniform(self, tensor: torch.Tensor, low: float, high: float) -> None:
        values = torch.rand(tensor.shape, generator=self.generator) * (high - low) + low
        tensor.copy_(values.to(tensor.dtype))

    def enliven(self, parameter: torch.Tensor) -> None:
        """Draw anew what is constant: about its value, or at a usual scale if that is tiny."""
        if parameter.numel() < 2 or not bool((parameter == parameter.flatten()[0]).all()):
            return
        level = float(parameter.flatten()[0])
        is_vector = parameter.numel() == max(parameter.shape)
        if abs(level) > _TINY_LEVEL:
            self.uniform(parameter, 0.75 * level, 1.25 * level)
        elif level != 0.0:
            self.uniform(parameter, 0.1, 0.3)  # a layer scale
        elif is_vector:
            self.uniform(parameter, -0.1, 0.1)  # a bias
        else:
            bound = math.sqrt(3.0 / parameter[0].numel())
            self.uniform(parameter, -bound, bound)


def _batch_norms(module: nn.Module) -> list[Any]:
    kind = nn.modules.batchnorm._BatchNorm
    parts = [part for part in module.modules() if isinstance(part, kind)]
    return [part for part in parts if part.running_var is not None]


def load_state_dict(module: nn.Module, path: Path) -> None:
    """Load ``path`` strictly into ``module``.

    Parameters
    ----------
    module
        Changed in place.
    path
        A file of ``torch.save``: a state dict, alone or under ``state_dict`` or ``model``.

    Raises
    ------
    ImportModelError
        The file cannot be read without running code from it, or does not fit the model.
    """
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ImportModelError(
            f"cannot read weights from {str(path)!r}: {_first_line(error)}. Only tensors are "
            "loaded (weights_only=True); save with torch.save(model.state_dict(), path)"
        ) from error
    state = _unwrap(data, path)
    problems = _mismatches(module.state_dict(), state)
    if problems:
        raise ImportModelError(f"weights {str(path)!r} do not fit the model: {'; '.join(problems)}")
    module.load_state_dict(state, strict=True)


def _unwrap(data: Any, path: Path) -> dict[str, torch.Tensor]:
    if isinstance(data, dict):
        for key in _WRAPPER_KEYS:
            if isinstance(data.get(key), dict):
                data = data[key]
                break
    if not isinstance(data, dict) or not all(isinstance(v, torch.Tensor) for v in data.values()):
        kind = type(data).__name__
        raise ImportModelError(
            f"weights {str(path)!r} hold a {kind}, not a state dict of tensors (alone, or under "
            f"{' or '.join(map(repr, _WRAPPER_KEYS))})"
        )
    return data


def _mismatches(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> list[str]:
    shapes = [
        f"{key} is {tuple(found[key].shape)} instead of {tuple(expected[key].shape)}"
        for key in expected
        if key in found and found[key].shape != expected[key].shape
    ]
    groups = {
        "missing": [key for key in expected if key not in found],
        "unexpected": [key for key in found if key not in expected],
        "of another shape": shapes,
    }
    return [f"{len(keys)} {what}: {_shorten(keys)}" for what, keys in groups.items() if keys]


def _shorten(keys: list[str]) -> str:
    return ", ".join(keys[:_SHOWN]) + (", …" if len(keys) > _SHOWN else "")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
