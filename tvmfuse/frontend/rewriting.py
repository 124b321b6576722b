"""Small moves on exported graphs that rewrites share."""

from __future__ import annotations

from typing import Any

from torch import fx


def operator_name(node: fx.Node) -> str:
    """Return ``"add"`` for ``aten.add.Tensor``; the target's own name for other callables."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        return str(schema.name).partition("::")[2]
    return str(getattr(node.target, "__name__", node.target))


def call_before(node: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Insert a call before ``node``; its value is known by running it on fakes."""
    graph = node.graph
    with graph.inserting_before(node):
        made = graph.call_function(target, args, kwargs)
    values = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
    made.meta = {
        "val": target(*values[0], **values[1]),
        "stack_trace": node.meta.get("stack_trace"),
    }
    return made
