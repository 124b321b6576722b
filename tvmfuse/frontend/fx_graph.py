"""Operators of a plain ``nn.Module`` through ``torch.fx``, before anything is imported."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node, symbolic_trace
from torch.fx.passes.shape_prop import ShapeProp

from tvmfuse.errors import ImportModelError
from tvmfuse.frontend.keywords import apart
from tvmfuse.graph import Operator

_VIEWS = ("flatten", "view", "reshape", "getitem", "size", "getattr", "unsqueeze", "squeeze",
          "identity", "dropout", "contiguous", "detach")  # fmt: skip
_PER_ELEMENT = {
    "sigmoid": 12.0, "silu": 13.0, "gelu": 18.0, "tanh": 14.0, "softmax": 14.0, "exp": 10.0,
    "layernorm": 8.0, "layer_norm": 8.0, "batchnorm2d": 4.0, "groupnorm": 8.0, "hardswish": 4.0,
    "cat": 0.0, "permute": 0.0, "transpose": 0.0, "chunk": 0.0, "split": 0.0, "pad": 0.0,
}  # fmt: skip


def fx_operators(module: nn.Module, inputs: tuple[Any, ...]) -> list[Operator]:
    """Trace a module symbolically and count what its operators compute and move.

    Raises
    ------
    ImportModelError
        ``torch.fx`` cannot trace it (control flow that depends on values), or it does not run.
    """
    try:
        module, args, kwargs = apart(module, inputs)
        if kwargs:
            given = inspect.signature(module.forward).bind(*args, **kwargs)
            given.apply_defaults()
            inputs = tuple(given.arguments.values())
        traced = symbolic_trace(module)
        with torch.no_grad():
            ShapeProp(traced).propagate(*inputs)
    except Exception as error:  # tracing runs the user's own code
        raise ImportModelError(
            f"torch.fx cannot trace {type(module).__name__}: {error}; the graph after import "
            "is shown by --graph relax"
        ) from error
    found, through = [], dict[str, tuple[str, ...]]()
    for node in traced.graph.nodes:
        reads = tuple(
            dict.fromkeys(n for i in node.all_input_nodes for n in through.get(i.name, (i.name,)))
        )
        op = _kind(traced, node)
        if op in ("placeholder", "output", "get_attr"):
            through[node.name] = ()
        elif op in _VIEWS or _bytes(node) == 0:
            through[node.name] = reads
        else:
            moved = _bytes(node) + sum(_bytes(i) for i in node.all_input_nodes)
            flops = _flops(traced, node, op)
            weights = _weight_bytes(traced, node)
            found.append(Operator(node.name, op, flops, moved + weights, reads, _dtype(node)))
    return found


def _kind(traced: GraphModule, node: Node) -> str:
    if node.op == "call_module":
        return type(traced.get_submodule(str(node.target))).__name__.lower()
    if node.op == "call_function":
        return str(getattr(node.target, "__name__", node.target)).strip("_")
    return str(node.target) if node.op == "call_method" else node.op


def _tensors(node: Node) -> list[Any]:
    meta = node.meta.get("tensor_meta")
    many = meta if isinstance(meta, (tuple, list)) and not hasattr(meta, "shape") else [meta]
    return [m for m in many if hasattr(m, "shape")]


def _bytes(node: Node) -> int:
    return sum(math.prod(m.shape) * m.dtype.itemsize for m in _tensors(node))


def _dtype(node: Node) -> str:
    return str(_tensors(node)[0].dtype).removeprefix("torch.")


def _weight_bytes(traced: GraphModule, node: Node) -> int:
    if node.op != "call_module":
        return 0
    own = traced.get_submodule(str(node.target)).parameters()
    return sum(p.numel() * p.element_size() for p in own)


def _flops(traced: GraphModule, node: Node, op: str) -> float:
    out = sum(math.prod(m.shape) for m in _tensors(node))
    read = max((sum(math.prod(m.shape) for m in _tensors(i)) for i in node.all_input_nodes),
               default=0)  # fmt: skip
    module = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
    weight = getattr(module, "weight", None)
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return 2.0 * out * math.prod(module.weight.shape[1:])
    if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        return 2.0 * read * math.prod(module.weight.shape[1:])
    if isinstance(module, nn.Linear) and weight is not None:
        return 2.0 * out * module.in_features
    if op in ("matmul", "bmm", "mm", "linear") and node.all_input_nodes:
        first = _tensors(node.all_input_nodes[0])
        return 2.0 * out * (first[0].shape[-1] if first else 0)
    elements = read if "pool" in op or op in ("mean", "sum") else out
    return _PER_ELEMENT.get(op, 1.0) * elements
