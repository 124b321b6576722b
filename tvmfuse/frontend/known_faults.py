"""What TVM 0.27's importer gets wrong without saying so: refused, with the reason.

One table: operator name to checks. A check looks at one node of the normalised graph and
returns the reason to refuse it, or the empty string. Remove a row when its cure arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tvmfuse.frontend.rewriting import operator_name

Check = Callable[[fx.Node], str]


def reason_to_refuse(node: fx.Node) -> str:
    """Return why ``node`` cannot be imported faithfully, or the empty string."""
    if node.op != "call_function":
        return ""
    for check in (*_ALWAYS, *_FAULTS.get(operator_name(node), ())):
        reason = check(node)
        if reason:
            return reason
    return ""


def _argument(node: fx.Node, name: str) -> Any:
    """Return an argument by its schema name, wherever it was passed; None when left out."""
    schema = node.target._schema  # type: ignore[union-attr]
    for position, argument in enumerate(schema.arguments):
        if argument.name == name:
            given = node.args[position] if position < len(node.args) else None
            return node.kwargs.get(name, given)
    return None


def _random(node: fx.Node) -> str:
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags:
        return ""
    return (
        "draws random numbers; they would be drawn once at import and frozen. Pass them in as "
        "an input, or switch dropout off by model.eval()"
    )


def _data_dependent(node: fx.Node) -> str:
    values = node.meta.get("val")
    many = values if isinstance(values, (tuple, list)) else (values,)
    for value in many:
        if isinstance(value, torch.Tensor) and not all(isinstance(s, int) for s in value.shape):
            return f"has the shape {tuple(value.shape)}, which is not known at compile time"
    return ""


def _higher_order(node: fx.Node) -> str:
    if not isinstance(node.target, torch._ops.HigherOrderOperator):
        return ""
    if node.target is torch.ops.higher_order.cond:
        return (
            "chooses between branches: the model is compiled in parts, and no single graph is "
            "there to explain or to bisect"
        )
    return (
        "runs a program of its own for each choice or step, which is not compiled; compute both "
        "sides and use torch.where, unroll the loop, or let PyTorch run it with --fallback eager"
    )


def _complex(node: fx.Node) -> str:
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    leaves = pytree.tree_leaves(values)
    if any(isinstance(v, torch.Tensor) and v.is_complex() for v in leaves):
        return "computes with complex numbers, which TVM does not know"
    return ""


def _not_float32(node: fx.Node) -> str:
    dtype = node.meta["val"].dtype
    if dtype in (torch.float32, torch.float16, torch.bfloat16):  # the halves compute in float32
        return ""
    name = str(dtype).removeprefix("torch.")
    return f"computes in {name}, which TVM turns into float32; give the model in float32"


def _statistics_used(node: fx.Node) -> str:
    used = [u for u in node.users if operator_name(u) == "getitem" and u.args[1] and u.users]
    return "would return wrong statistics (outputs behind the first)" if used else ""


def _equal_integers(node: fx.Node) -> str:
    if node.args[0].meta["val"].dtype.is_floating_point:  # type: ignore[union-attr]
        return ""
    used = [u for u in node.users if operator_name(u) == "getitem" and u.args[1] and u.users]
    return "of equal integers names places that PyTorch leaves open" if used else ""


def _unstable_sort_of_booleans(node: fx.Node) -> str:
    source: Any = node.args[0]
    if source.meta["val"].dtype != torch.bool or _argument(node, "stable"):
        return ""
    used = [u for u in node.users if operator_name(u) == "getitem" and u.args[1] and u.users]
    return (
        "of equal booleans names places that PyTorch leaves open; use stable=True" if used else ""
    )


def _mask_put(node: fx.Node) -> str:
    indices = [index for index in node.args[1] if index is not None]  # type: ignore[union-attr]
    if any(index.meta["val"].dtype == torch.bool for index in indices):
        return "writes through a mask; use torch.where(mask, value, x)"
    return ""


_ALWAYS: tuple[Check, ...] = (_higher_order, _random, _data_dependent, _complex)

_TRANSPOSED = ("convolution", "conv_transpose1d", "conv_transpose2d")

_FAULTS: dict[str, tuple[Check, ...]] = {
    **dict.fromkeys(_TRANSPOSED, (_not_float32,)),
    "index_put": (_mask_put,),
    "topk": (_equal_integers,),
    "sort": (_unstable_sort_of_booleans,),
    **dict.fromkeys(
        (
            "native_batch_norm",
            "_native_batch_norm_legit",
            "_native_batch_norm_legit_no_training",
            "_native_batch_norm_legit_functional",
        ),
        (_statistics_used,),
    ),
}
