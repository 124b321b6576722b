"""Keyword arguments: inside of the compiler every argument has a position."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tvmfuse.errors import ImportModelError


class ByKeyword(nn.Module):
    """A module whose last arguments are passed on by name.

    Parameters
    ----------
    module
        The user's; its parameters and buffers keep their names.
    names
        Of the last arguments.
    """

    def __init__(self, module: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.module, self.names = module, names

    def apart(self, inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the user's module."""
        at = len(inputs) - len(self.names)
        return tuple(inputs[:at]), dict(zip(self.names, inputs[at:], strict=True))

    def forward(self, *inputs: Any) -> Any:
        """Call the user's module."""
        args, kwargs = self.apart(inputs)
        return self.module(*args, **kwargs)

    def get_buffer(self, target: str) -> torch.Tensor:
        """The buffer that has this name in the user's module."""
        return self.module.get_buffer(target)


def with_keywords(
    module: nn.Module, args: tuple[Any, ...], kwargs: Any
) -> tuple[nn.Module, tuple[Any, ...]]:
    """The module and its arguments, all by position.

    Keywords come in the order of the parameters of ``forward``, so that the order in which the
    caller writes them means nothing.

    Raises
    ------
    ImportModelError
        ``kwargs`` are no mapping from names, or do not fit the module's ``forward``.
    """
    if kwargs is None:
        return module, args
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise ImportModelError(
            f"kwargs must map the names of arguments to values, got a {type(kwargs).__name__}"
        )
    if not kwargs:
        return module, args
    expected = inspect.signature(module.forward)
    try:
        expected.bind(*args, **kwargs)
    except TypeError as error:
        raise ImportModelError(
            f"the example arguments do not fit {type(module).__name__}.forward{expected}: {error}"
        ) from error
    known = [name for name in expected.parameters if name in kwargs]
    names = (*known, *(name for name in kwargs if name not in known))
    return ByKeyword(module, names), (*args, *(kwargs[name] for name in names))


def apart(
    module: nn.Module, inputs: tuple[Any, ...]
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The user's own module with its positional and keyword arguments."""
    if isinstance(module, ByKeyword):
        return module.module, *module.apart(inputs)
    return module, tuple(inputs), {}
