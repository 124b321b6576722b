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

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Static shape of the result; None when unknown or a tuple."""
        return shape_of(self.var)

    @property
    def dtype(self) -> str:
        """Element type of the result."""
        return dtype_of(self.var)


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
                name, _kind(binding.value), binding.var, binding.value, operands
            )
        self.parameters = tuple(str(p.name) for p in main.params)
        self.outputs = frozenset(self._returned(main.body.body))
        self.position = {name: i for i, name in enumerate(self.nodes)}

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


def _kind(value: Any) -> str:
    name = op_name(value)
    if name == "relax.call_tir":
        return str(value.args[0].name_hint).rstrip("0123456789_")
    return name.removeprefix("relax.")
