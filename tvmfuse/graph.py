"""Read-only facts about ``main`` of a Relax module: operators, uses, shapes, work and traffic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst, Op


def op_name(expr: Any) -> str:
    """Name of the called operator, e.g. ``"relax.nn.conv2d"``; empty for anything else."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, Op):
        return str(expr.op.name)
    return ""


def array_of(expr: Any) -> np.ndarray | None:
    """The values of a constant; None for anything else."""
    return expr.value.numpy() if isinstance(expr, GenericConst) else None


def shape_of(expr: Any) -> tuple[int, ...] | None:
    """Static shape of a tensor expression; None when any extent is symbolic or unknown."""
    shape = getattr(expr.ty, "shape", None)
    if shape is None or not hasattr(shape, "values"):
        return None
    extents = [getattr(v, "value", None) for v in shape.values]
    known = tuple(int(v) for v in extents if v is not None)
    return known if len(known) == len(extents) else None


def dtype_of(expr: Any) -> str:
    """Element type of a tensor expression; empty for anything else."""
    return str(getattr(expr.ty, "dtype", "") or "")


def ints(values: Any) -> tuple[int, ...]:
    """Plain integers of an attribute array."""
    return tuple(int(v) for v in values)


def bindings(func: relax.Function) -> list[relax.VarBinding]:
    """All bindings of a function in order."""
    return [b for block in func.body.blocks for b in block.bindings]


def tensor_bytes(expr: Any) -> int:
    """Bytes of a tensor expression (of all fields of a tuple); 0 when the shape is unknown."""
    fields = getattr(expr.ty, "fields", None)
    if fields is not None:
        return sum(_type_bytes(f) for f in fields)
    return _type_bytes(expr.ty)


def _type_bytes(ty: Any) -> int:
    values = getattr(getattr(ty, "shape", None), "values", None)
    if values is None or any(getattr(v, "value", None) is None for v in values):
        return 0
    return math.prod(int(v.value) for v in values) * dtype_bytes(str(ty.dtype))


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element; bool takes one."""
    if dtype == "bool":
        return 1
    digits = "".join(c for c in dtype if c.isdigit())
    return max(1, int(digits or 8) // 8)


@dataclass(frozen=True)
class Node:
    """One binding of ``main``.

    Parameters
    ----------
    name
        The variable that it binds.
    op
        The operator without its namespace, e.g. ``"nn.conv2d"``; for a lowered kernel the name
        of what it computes, e.g. ``"conv2d"``; ``""`` for tuples and their items.
    var, value
        The bound variable and the expression.
    operands
        Variables and constants that it reads, tuples flattened, in order.
    """

    name: str
    op: str
    var: relax.Var
    value: Any
    operands: tuple[Any, ...]

    # Reading a type crosses into C++ for every extent: once for each node.
    @cached_property
    def shape(self) -> tuple[int, ...] | None:
        """Static shape of the result; None when unknown or a tuple."""
        return shape_of(self.var)

    @cached_property
    def dtype(self) -> str:
        """Element type of the result."""
        return dtype_of(self.var)

    @cached_property
    def bytes(self) -> int:
        """Bytes of the result; 0 when its shape is unknown."""
        return tensor_bytes(self.var)


class Graph:
    """``main`` as nodes in order, with who reads whom.

    Parameters
    ----------
    mod
        A Relax module whose ``main`` is straight-line code with unique variable names.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        main = mod["main"]
        self.nodes: dict[str, Node] = {}
        for binding in bindings(main):
            name = str(binding.var.name)
            operands = tuple(_leaves(binding.value))
            self.nodes[name] = Node(
                name, op_of(binding.value), binding.var, binding.value, operands
            )
        self.parameters = tuple(str(p.name) for p in main.params)
        self.outputs = frozenset(self._returned(main.body.body))
        self.position = {name: i for i, name in enumerate(self.nodes)}
        self._bytes: dict[str | int, int] = {}  # of parameters and constants
        self.memo: dict[Any, Any] = {}  # what variants of one rule share of their matching

    def _returned(self, expr: Any) -> Iterator[str]:
        """Names of what is returned, through the bindings of tuples."""
        for leaf in self.leaves(expr):
            name = str(leaf.name)
            yield name
            node = self.nodes.get(name)
            if node is not None and isinstance(node.value, (relax.Tuple, relax.Var)):
                yield from self._returned(node.value)

    @cached_property
    def users(self) -> dict[str, tuple[str, ...]]:
        """Nodes that read each variable, in order, each once."""
        found: dict[str, list[str]] = {}
        for node in self.nodes.values():
            for read in dict.fromkeys(self.reads(node)):
                found.setdefault(read, []).append(node.name)
        return {name: tuple(readers) for name, readers in found.items()}

    @staticmethod
    def reads(node: Node) -> Iterator[str]:
        """Names of the variables that ``node`` reads, as often as it reads them."""
        return (str(o.name) for o in node.operands if isinstance(o, relax.Var))

    @staticmethod
    def leaves(value: Any) -> Iterator[relax.Var]:
        """The variables that an expression reads."""
        return (leaf for leaf in _leaves(value) if isinstance(leaf, relax.Var))

    def node(self, expr: Any) -> Node | None:
        """The node that binds ``expr``; None for parameters and constants."""
        return self.nodes.get(str(expr.name)) if isinstance(expr, relax.Var) else None

    def bytes_of(self, operand: Any) -> int:
        """Bytes of an operand of one of the nodes."""
        node = self.node(operand)
        if node is not None:
            return node.bytes
        key = str(operand.name) if isinstance(operand, relax.Var) else id(operand)
        if key not in self._bytes:
            self._bytes[key] = tensor_bytes(operand)
        return self._bytes[key]

    def sole_user(self, name: str) -> str | None:
        """The only node that reads ``name``; None when there are more, or the model returns it."""
        users = self.users.get(name, ())
        return users[0] if len(users) == 1 and name not in self.outputs else None

    def order_of(self, expr: Any) -> int:
        """Position of the binding of ``expr``; -1 for parameters and constants."""
        return self.position.get(str(expr.name), -1) if isinstance(expr, relax.Var) else -1


def _leaves(expr: Any) -> Iterator[Any]:
    if isinstance(expr, (relax.Var, GenericConst)):
        yield expr
    elif isinstance(expr, relax.Tuple):
        for field in expr.fields:
            yield from _leaves(field)
    elif isinstance(expr, relax.TupleGetItem):
        yield from _leaves(expr.tuple_value)
    elif isinstance(expr, relax.Call):
        for argument in expr.args:
            yield from _leaves(argument)


def op_of(value: Any) -> str:
    """What a call computes: an operator's name, or that of the kernel it calls, without numbers."""
    name = op_name(value)
    if name == "relax.call_tir":
        return str(value.args[0].name_hint).rstrip("0123456789_")
    return name.removeprefix("relax.")


# Operators that move data and compute nothing.
MOVES = frozenset(
    ("", "reshape", "permute_dims", "transpose", "concat", "concatenate", "split", "strided_slice",
     "slice", "take", "embedding", "broadcast_to", "expand_dims", "squeeze", "flatten", "nn.pad",
     "pad", "tile", "repeat", "layout_transform", "copy")
)  # fmt: skip
# Arithmetic operations an element; those of functions are about what their polynomials take.
_COST = {
    "exp": 10, "sigmoid": 12, "tanh": 14, "erf": 14, "gelu": 18, "gelu_tanh": 18, "silu": 13,
    "mish": 26, "softplus": 22, "elu": 12, "selu": 12, "log": 12, "power": 22, "power_const": 22,
    "sin": 14, "cos": 14, "divide": 2, "sqrt": 2, "rsqrt": 2, "hardswish": 4, "hardsigmoid": 3,
    "softmax": 14, "log_softmax": 14, "layer_norm": 8, "group_norm": 8, "instance_norm": 8,
    "rms_norm": 5, "batch_norm": 4, "clip": 2, "relu6": 2,
}  # fmt: skip
_OVER_INPUT = ("sum", "mean", "max", "min", "prod", "variance", "softmax", "log_softmax")


def elements_of(expr: Any) -> int:
    """Elements of a tensor expression; 0 when its shape is unknown."""
    shape = shape_of(expr)
    return 0 if shape is None else math.prod(shape)


def node_flops(node: Node) -> float:
    """Arithmetic operations of one operator: a multiplication and an addition are two.

    Of shapes alone, for operators as for lowered kernels; 0 for one that only moves data and
    where a shape is unknown.
    """
    op = node.op.removeprefix("nn.").removeprefix("tir_")
    if node.op in MOVES or op in MOVES or not node.operands:
        return 0.0
    first = node.operands[0]
    own = elements_of(first) if node.shape is None else math.prod(node.shape)  # None: a tuple
    if op.startswith("conv") and len(node.operands) > 1:
        weight = shape_of(node.operands[1])
        if not weight:
            return 0.0
        rows = elements_of(first) if "transpose" in op else own
        return 2.0 * rows * math.prod(weight[1:])
    if op in ("matmul", "dense"):
        return 2.0 * own * (shape_of(first) or (0,))[-1]
    if op in ("call_pure_packed", "attention") and len(node.operands) > 2:
        width, keys = (shape_of(first) or (1,))[-1], (shape_of(node.operands[1]) or (0,))[-1]
        both = width + (shape_of(node.operands[2]) or (0,))[-1]
        return 2.0 * elements_of(first) / max(1, width) * keys * both
    reduces = op.startswith(_OVER_INPUT) or "pool" in op
    elements = elements_of(first) if reduces else own
    return float(elements * _COST.get(op, 1))


def node_bytes(graph: Graph, node: Node) -> int:
    """Bytes that one operator reads and writes when it runs for itself; 0 for views."""
    if node.op in ("", "reshape"):
        return 0
    distinct = {
        str(o.name) if isinstance(o, relax.Var) else id(o): graph.bytes_of(o) for o in node.operands
    }
    return sum(distinct.values()) + node.bytes


@dataclass(frozen=True)
class Operator:
    """One operator as the roofline sees it, whatever graph it comes from.

    Parameters
    ----------
    name, op
        Its result, and what it computes without a namespace.
    flops, moved_bytes
        Arithmetic operations, and bytes read and written when it runs for itself.
    reads
        Results of other operators that it reads.
    dtype
        Element type of its result.
    """

    name: str
    op: str
    flops: float
    moved_bytes: int
    reads: tuple[str, ...]
    dtype: str = "float32"

    @property
    def intensity(self) -> float:
        """Operations a byte; 0 for one that moves nothing."""
        return self.flops / self.moved_bytes if self.moved_bytes else 0.0


def operators(graph: Graph) -> list[Operator]:
    """Every operator of a graph; views and tuples are looked through."""
    seen_through: dict[str, tuple[str, ...]] = {}
    found = []
    for node in graph.nodes.values():
        reads = tuple(
            dict.fromkeys(r for n in graph.reads(node) for r in seen_through.get(n, (n,)))
        )
        if node.op in ("", "reshape"):
            seen_through[node.name] = reads
            continue
        inner = tuple(r for r in reads if r in graph.nodes)
        work, moved = node_flops(node), node_bytes(graph, node)
        found.append(Operator(node.name, node.op, work, moved, inner, node.dtype or "float32"))
    return found
