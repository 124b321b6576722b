"""Operators along a dimension, given a tensor without dimensions: PyTorch takes it as one of [1].

TVM does not. Each such call becomes ``view(operator(view(x, [1]), …), [])``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from tvmfuse.frontend.rewriting import call_before, operator_name

_ATEN = torch.ops.aten

ALONG_A_DIMENSION = frozenset(
    ("_softmax", "_log_softmax", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort",
     "argsort", "topk", "kthvalue", "median", "nanmedian", "mode", "argmax", "argmin", "max",
     "min", "amax", "amin", "flip", "sum", "mean", "prod", "any", "all", "var", "std",
     "linalg_vector_norm", "unbind", "roll", "index", "logsumexp", "count_nonzero", "nansum")
)  # fmt: skip
# Their indices and sources have no dimension either then.
WITH_COMPANIONS = frozenset(
    ("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add",
     "index_copy", "index_fill", "index_reduce", "index_put", "take_along_dim")
)  # fmt: skip


def widen_scalar(program: Any, node: fx.Node) -> None:
    """Rewrite ``node`` when its input has no dimension."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or not _is_scalar(source):
        return
    tensors = [source]
    if operator_name(node) in WITH_COMPANIONS:
        tensors = [a for a in node.all_input_nodes if _is_scalar(a)]
    wide = {t: call_before(node, _ATEN.view.default, t, [1]) for t in tensors}
    node.args, node.kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: wide.get(n, n))
    values = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    before, after = node.meta["val"], node.target(*values[0], **values[1])  # type: ignore[operator]
    node.meta["val"] = after
    if isinstance(after, torch.Tensor):
        _narrow(node, before, after)
        return
    for item in list(node.users):
        index = item.args[1]
        item.meta["val"] = after[index]
        _narrow(item, before[index], after[index])


def _is_scalar(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.ndim == 0


def _narrow(node: fx.Node, before: torch.Tensor, after: torch.Tensor) -> None:
    """Let everyone read ``node`` in its old shape."""
    if before.shape == after.shape:
        return
    graph, users = node.graph, list(node.users)
    with graph.inserting_after(node):
        view = graph.call_function(_ATEN.view.default, (node, list(before.shape)))
    view.meta = {"val": before, "stack_trace": node.meta.get("stack_trace")}
    for user in users:
        user.replace_input_with(node, view)
