"""Writes into tensors: which names of the same memory see them."""

from __future__ import annotations

import torch
from torch import fx
from torch.utils import _pytree as pytree

# Composed of others, and yet their result is always new memory.
_FRESH = frozenset(
    f"aten::{name}"
    for name in (
        "conv1d", "conv2d", "conv3d", "linear", "matmul", "batch_norm", "layer_norm", "group_norm",
        "instance_norm", "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d",
        "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "softmax",
        "scaled_dot_product_attention", "relu6", "silu", "selu",
    )
)  # fmt: skip


def rewritten(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]] | None:
    """Find for each call that writes in place which names stand for its result from there on.

    Returns
    -------
    dict or None
        None where a write could be seen through a name for another view of the same memory, or
        outside of the program.
    """
    place = {node: number for number, node in enumerate(graph.nodes)}
    shared: dict[fx.Node, set[fx.Node]] = {}  # all names that may be of the same memory
    whole: dict[fx.Node, list[fx.Node]] = {}  # names of the very same tensor
    written: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        group = {node}
        for source in _aliased(node):
            group |= shared[source]
        for member in group:
            shared[member] = group
        whole[node] = [node]
        if not _writes(node):
            continue
        target = _written_argument(node)
        if target is None or any(m.op == "placeholder" for m in group):
            return None
        names = whole[target]
        others = group.difference(names, (node,))
        if any(place[u] > place[node] for m in others for u in m.users):
            return None
        written[node] = list(names)
        whole[node] = names
        names.append(node)
    return written


def _aliased(node: fx.Node) -> list[fx.Node]:
    """Operands whose memory the result may be."""
    if node.op in ("placeholder", "output"):
        return []
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return node.all_input_nodes
    schema = target._schema
    if any(r.alias_info is not None for r in schema.returns):
        given = zip(schema.arguments, node.args, strict=False)
        named = [a for said, a in given if said.alias_info is not None]
        return [a for a in pytree.tree_leaves((named, node.kwargs)) if isinstance(a, fx.Node)]
    if target.name().partition(".")[0] in _FRESH or not _is_composite(target):
        return []
    return node.all_input_nodes  # its parts may be views, whatever its schema says (dropout)


def _is_composite(target: torch._ops.OpOverload) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    )


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _written_argument(node: fx.Node) -> fx.Node | None:
    """The first argument, if it is all that is written, and what is returned."""
    schema = node.target._schema  # type: ignore[union-attr]
    writes = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
    if not writes or not writes[0] or any(writes[1:]) or len(schema.returns) != 1:
        return None
    first = node.args[0] if node.args else None
    return first if isinstance(first, fx.Node) else None
