"""Half precision as PyTorch's CPU kernels do it: compute in float32, round once at the end.

TVM would compute sums, products and exponentials in the narrow type. Here every operator that
computes reads its operands as float32 and rounds its result; operators that only move data keep the
type. The casts fuse with their neighbours, and those of weights are folded at compile time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from tvmfuse.frontend.rewriting import call_before, operator_name

_ATEN = torch.ops.aten
_NARROW = (torch.float16, torch.bfloat16)

# These move or make values and compute none; a cast is what it says.
_MOVES = frozenset(
    ("view", "reshape", "permute", "transpose", "slice", "select", "cat", "stack", "expand",
     "clone", "alias", "index", "index_select", "gather", "embedding", "flip", "roll", "where",
     "split_with_sizes", "split", "unbind", "squeeze", "unsqueeze", "repeat", "constant_pad_nd",
     "_to_copy", "copy", "full", "full_like", "zeros_like", "ones_like", "zeros", "ones", "arange",
     "lift_fresh_copy", "detach", "index_put", "scatter", "slice_scatter", "select_scatter",
     "diagonal", "tril", "triu", "broadcast_to", "getitem", "masked_fill", "as_strided", "empty",
     "scalar_tensor", "contiguous", "fill")
)  # fmt: skip


def widen_halves(program: Any) -> None:
    """Rewrite ``program.graph`` in place; nothing changes where there is no half precision."""
    for node in list(program.graph.nodes):
        if node.op == "call_function" and operator_name(node) not in _MOVES and _touches(node):
            _widen(node)


def _narrow(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _NARROW


def _touches(node: fx.Node) -> bool:
    values = node.meta.get("val")
    if values is None:  # an assertion: it computes nothing
        return False
    own = values if isinstance(values, (tuple, list)) else (values,)
    return any(_narrow(v) for v in (*own, *(n.meta.get("val") for n in node.all_input_nodes)))


def _widen(node: fx.Node) -> None:
    wide = {
        source: call_before(node, _ATEN._to_copy.default, source, dtype=torch.float32)
        for source in node.all_input_nodes
        if _narrow(source.meta.get("val"))
    }
    node.args, node.kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: wide.get(n, n))
    node.args = tuple(_wide_type(a) for a in node.args)
    node.kwargs = {name: _wide_type(a) for name, a in node.kwargs.items()}
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        if _narrow(value):
            node.meta["val"] = value.float()
            _round_behind(node, value)
        return
    node.meta["val"] = type(value)(v.float() if _narrow(v) else v for v in value)
    for item in list(node.users):
        if operator_name(item) == "getitem" and _narrow(item.meta.get("val")):
            narrow = item.meta["val"]
            item.meta["val"] = narrow.float()
            _round_behind(item, narrow)


def _wide_type(argument: Any) -> Any:
    """A ``dtype=`` that asks for a half result: the cast behind gives it."""
    return torch.float32 if argument in _NARROW and isinstance(argument, torch.dtype) else argument


def _round_behind(node: fx.Node, value: torch.Tensor) -> None:
    users = list(node.users)
    with node.graph.inserting_after(node):
        rounded = node.graph.call_function(_ATEN._to_copy.default, (node,), {"dtype": value.dtype})
    rounded.meta = {**node.meta, "val": value}
    for user in users:
        user.replace_input_with(node, rounded)
