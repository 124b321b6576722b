"""Values that do not depend on the input, computed once by PyTorch while importing.

Position tables, shifted-window masks and views of weights would otherwise become kernels that
compute the same result in every call (TVM's own folding compiles each of them first).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tvmfuse.frontend.qdq import DEQUANTIZE
from tvmfuse.frontend.rewriting import operator_name

# A larger result is kept as an operator, unless its operands were as large: constants are
# stored in the artifact, and expanding a scalar to a feature map is cheaper than loading it.
_LARGEST_BYTES = 16 * 2**20


class ConstantFolder:
    """Knows the values of a program's nodes as far as they are constant.

    Parameters
    ----------
    program
        A functional ``torch.export.ExportedProgram``.
    """

    def __init__(self, program: Any) -> None:
        signature = program.graph_signature
        stored = {**program.constants, **program.state_dict}
        sources = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        self._values: dict[fx.Node, Any] = {
            node: stored[sources[node.name]].detach()
            for node in program.graph.find_nodes(op="placeholder")
            if sources.get(node.name) in stored
        }
        # Whatever a tensor without elements depends on, it has one value.
        self._values.update(
            (node, torch.empty(tuple(node.meta["val"].shape), dtype=node.meta["val"].dtype))
            for node in program.graph.nodes
            if isinstance(node.meta.get("val"), torch.Tensor) and node.meta["val"].numel() == 0
        )

    def knows(self, node: fx.Node) -> bool:
        """Whether the value of ``node`` was found already."""
        return node in self._values

    def fold(self, node: fx.Node) -> Any | None:
        """Return the value of ``node``, or None where it depends on the input.

        Nodes must come in graph order. The value is a tensor, or a tuple or list of tensors.
        """
        if node in self._values:
            return self._values[node]
        if not all(source in self._values for source in node.all_input_nodes):
            return None
        if operator_name(node) in DEQUANTIZE:
            return None  # of weights, which passes multiply as integers
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._values.__getitem__)
        with torch.no_grad():
            value = node.target(*args, **kwargs)  # type: ignore[operator]
        read = sum(_size_bytes(self._values[source]) for source in node.all_input_nodes)
        if not _is_tensors(value) or _size_bytes(value) > max(_LARGEST_BYTES, read):
            return None
        self._values[node] = value
        return value


def _is_tensors(value: Any) -> bool:
    leaves = pytree.tree_leaves(value)
    return bool(leaves) and all(isinstance(leaf, torch.Tensor) for leaf in leaves)


def _size_bytes(value: Any) -> int:
    return sum(t.numel() * t.element_size() for t in pytree.tree_leaves(value))
