"""From one node of the exported graph to Relax, where TVM has no converter or a wrong one.

One family a file. A converter is called with TVM's importer and the node; it finds converted
operands by ``importer.env[node]`` or ``importer.retrieve_args(node)`` and returns what it emits.
Prefer a decomposition (``tvmfuse.frontend.decompositions``) where PyTorch can say the operator
with simpler ones; write a converter where only Relax can. Add it to its family's ``CONVERTERS``
under the overload's name, ``"add.Tensor"``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmfuse.frontend.converters import extrema, norms, ordering, quantization

Converter = Callable[[Any, Any], Any]

_FAMILIES: tuple[Any, ...] = (extrema, norms, ordering, quantization)


def converters() -> dict[str, Converter]:
    """Return our converter of each operator overload, over all families."""
    return {name: f for family in _FAMILIES for name, f in family.CONVERTERS.items()}
