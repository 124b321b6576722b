"""What a model asserts of its values while it runs: one output more tells whether it holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from tvmfuse.frontend.locate import node_location
from tvmfuse.frontend.rewriting import call_before

_ATEN = torch.ops.aten
_ASSERTIONS = (_ATEN._assert_async.default, _ATEN._assert_async.msg)


def is_assertion(node: fx.Node) -> bool:
    """Whether a node only raises where a value is not as it should be."""
    return node.target in _ASSERTIONS


def take_assertions(program: Any) -> list[tuple[fx.Node, str]]:
    """Take assertions out of a functional program, in place.

    Returns
    -------
    list of (node, message)
        An int32 of one element that is not 0 where the assertion fails, and what it then says.
    """
    found = []
    for node in [n for n in program.graph.nodes if is_assertion(n)]:
        failed = call_before(node, _ATEN.logical_not.default, node.args[0])
        flag = call_before(node, _ATEN._to_copy.default, failed, dtype=torch.int32)
        said = f" ({node.args[1]})" if len(node.args) > 1 and node.args[1] else ""
        place = node_location(node.meta.get("stack_trace"))
        found.append((flag, f"the model's assertion fails{said}: {place}"))
        program.graph.erase_node(node)
    return found
