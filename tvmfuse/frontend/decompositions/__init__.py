"""Operators written with simpler ones, as functions on torch tensors; one family a file.

A decomposition takes the operator's own arguments and returns its result, by operators that the
importer gets right. It runs while the graph is traced, so that it is plain PyTorch and is tested
as such. Add a function to the file of its family and to that file's ``TABLE``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmfuse.frontend.decompositions import attention

_FAMILIES = (attention,)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return our decomposition of each operator overload, over all families."""
    return {operator: f for family in _FAMILIES for operator, f in family.TABLE.items()}
