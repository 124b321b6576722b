"""Half operands for products, float32 for all else, by the table of `tvmfuse.precision.mixed`.

A value that a product takes is rounded once, where it is made, and stored so; whoever else reads
it reads the rounded value, widened. Rounding moves in front of what only moves data, so that
branches of a concatenation are rounded where they are computed, and no cast meets its inverse.

Before: ``y = relu(conv2d(x, w) + b); conv2d(y, v); y + r``
After:  ``y = astype(relu(conv2d(half(x), half(w), out=float32) + b), half)``, then
        ``conv2d(y, half(v), out=float32)`` and ``astype(y, float32) + r``

The casts become part of the kernels around them (`tvmfuse.passes.absorb_casts`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvmfuse.config import HALVES
from tvmfuse.errors import OptionError
from tvmfuse.fusion.attention_call import AttentionCall, ScoreStep, make_call, read_call
from tvmfuse.graph import Graph, Node, array_of, dtype_of, shape_of
from tvmfuse.passes.relax_tools import with_leaves, with_variables
from tvmfuse.precision.mixed import (
    LARGEST,
    LEAST_DEPTH,
    MOVE,
    PRODUCT,
    TABLE,
    WIDE,
    beyond,
    policy,
)


@tvm.transform.module_pass(opt_level=0, name="MixedPrecision")
class MixedPrecision:
    """Placement: behind the merging rules, before attention and products become kernels.

    Parameters
    ----------
    dtype
        ``"float16"`` or ``"bfloat16"``.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        return _Casting(Graph(mod), mod, self._dtype).rewritten()


def check_castable(graph: Graph, dtype: str) -> None:
    """Refuse models without float32 products, with halves of their own, or with too large weights.

    Not a part of the pass, out of which an exception comes as another one.

    Raises
    ------
    OptionError
        Says what the model computes in.
    """
    types = {n.dtype for n in graph.nodes.values()} | {
        dtype_of(o) for n in graph.nodes.values() for o in n.operands
    }
    own = sorted(types & set(HALVES))
    if own:
        raise OptionError(
            f"--dtype {dtype} casts float32 models, and this one has {' and '.join(own)} of its "
            "own; leave --dtype out, and it keeps its types"
        )
    products = [node for node in graph.nodes.values() if is_product(node)]
    if not products:
        floats = sorted(t for t in types if t.startswith(("float", "int", "uint")))
        raise OptionError(
            f"--dtype {dtype} makes the operands of float32 convolutions and products halves, and "
            f"this model has none ({', '.join(floats) or 'no numbers'}); leave --dtype out"
        )
    weights = {id(o): array_of(o) for node in products for o in node.operands}
    for values in weights.values():
        if values is not None and (largest := beyond(values, dtype)):
            raise OptionError(
                f"a weight of shape {values.shape} reaches {largest:.3g}, and the largest "
                f"{dtype} is {LARGEST[dtype]:.5g}; use --dtype bfloat16 or float32"
            )


def is_product(node: Node) -> bool:
    """Whether a node's operands become halves."""
    if read_call(node.value) is not None:
        return node.dtype == WIDE and all(dtype_of(o) == WIDE for o in node.operands[:3])
    if policy(node.op) != PRODUCT or node.dtype != WIDE:
        return False
    x, w = (shape_of(o) for o in node.operands[:2])
    if not x or not w:
        return False
    return (math.prod(w[1:]) if node.op == "nn.conv2d" else x[-1]) >= LEAST_DEPTH


def _operands(graph: Graph, node: Node) -> tuple[Any, ...]:
    """What a product rounds."""
    call = read_call(node.value)
    if call is None:
        return node.operands[:2]
    return *(_behind_scales(graph, o).source for o in (call.q, call.k)), call.v


def rounded(graph: Graph) -> set[str]:
    """Names of the values that are stored as halves."""
    found: set[str] = set()

    def ask(operand: Any) -> None:
        if isinstance(operand, relax.Var):
            found.add(str(operand.name))

    nodes = list(graph.nodes.values())
    for node in reversed(nodes):
        if is_product(node):
            for operand in _operands(graph, node):
                ask(operand)
        elif node.name in found and _moves(graph, node):
            for operand in node.operands:
                ask(operand)
    # What moves halves alone gives halves: nobody has to widen them for it.
    for node in nodes:
        reads = list(graph.reads(node))
        halves = bool(reads) and set(reads) <= found - set(graph.parameters)
        whole = all(isinstance(o, relax.Var) for o in node.operands)
        if halves and whole and _moves(graph, node) and _is_wide(node):
            found.add(node.name)
    return found


def _moves(graph: Graph, node: Node) -> bool:
    if isinstance(node.value, relax.TupleGetItem):  # part of what is split, or of a norm's results
        source = graph.node(node.value.tuple_value)
        return source is not None and _moves(graph, source)
    return policy(node.op) == MOVE or isinstance(node.value, relax.Tuple)


def _is_wide(node: Node) -> bool:
    fields = getattr(node.var.ty, "fields", None)
    types = [str(f.dtype) for f in fields] if fields is not None else [node.dtype]
    return set(types) == {WIDE}


@dataclasses.dataclass(frozen=True)
class _Scaled:
    """An operand as ``scale`` times ``source``, moved by ``moves``, the last one first."""

    source: Any
    moves: tuple[Node, ...] = ()
    scale: float = 1.0


def _behind_scales(graph: Graph, operand: Any) -> _Scaled:
    """What multiplications by constants scale behind moves: attention has a step of its own."""
    found, moves, scale = _Scaled(operand), list[Node](), 1.0
    while (node := graph.node(operand)) is not None:
        if node.op == "multiply" and (factor := _factor(node)) is not None:
            operand, scale = factor[0], scale * factor[1]
            found = _Scaled(operand, tuple(moves), scale)
        elif policy(node.op) == MOVE and len(node.operands) == 1 and node.shape is not None:
            moves.append(node)
            operand = node.operands[0]
        else:
            break
    return found


def _factor(node: Node) -> tuple[Any, float] | None:
    """Tensor and number of a multiplication by one; None for another."""
    x, c = node.operands[:2]
    if isinstance(x, GenericConst):
        x, c = c, x
    value = array_of(c)
    if value is None or value.size != 1 or shape_of(x) != node.shape:
        return None
    return x, float(value.reshape(()))


class _Casting:
    """One rewriting of ``main``: every value as a half, wide, or both."""

    def __init__(self, graph: Graph, mod: tvm.IRModule, dtype: str) -> None:
        self.graph, self.mod, self.dtype = graph, mod, dtype
        self.rounded = rounded(graph)
        others = {gv: f for gv, f in mod.functions_items() if gv.name_hint != "main"}
        self.builder = relax.BlockBuilder(tvm.IRModule(others))
        self.wide: dict[relax.Var, Any] = {}
        self.halves: dict[relax.Var, Any] = {}
        self._constants: dict[int, tuple[Any, Any]] = {}  # the old one is kept: its id is the key

    def rewritten(self) -> tvm.IRModule:
        main = self.mod["main"]
        params = [relax.Var(p.name, p.ty) for p in main.params]
        with self.builder.function("main", params):
            with self.builder.dataflow():
                for old, new in zip(main.params, params, strict=True):
                    self.wide[old] = new
                for node in self.graph.nodes.values():
                    self._node(node)
                body = with_leaves(main.body.body, self._as_wide)
                output = self.builder.emit_output(body)
            self.builder.emit_func_output(output)
        return self.builder.finalize()

    def _node(self, node: Node) -> None:
        stored_half = node.name in self.rounded
        if is_product(node):
            value = self._product(node)
        elif isinstance(node.value, relax.Tuple):
            return self._tuple(node)
        elif stored_half and _moves(self.graph, node) and _is_wide(node):
            value = with_leaves(node.value, self._as_half)
            self.halves[node.var] = self.builder.emit(value, node.name)
            return None
        else:
            value = self._island(node)
        if dtype_of(self.builder.normalize(value)) == self.dtype:
            self.halves[node.var] = self.builder.emit(value, node.name)
        elif stored_half and _is_wide(node) and node.shape is not None:
            wide = self.builder.emit(value, f"{node.name}_wide")
            narrow = relax.op.astype(wide, self.dtype)
            self.halves[node.var] = self.builder.emit(narrow, node.name)
        else:
            self.wide[node.var] = self.builder.emit(value, node.name)
        return None

    def _tuple(self, node: Node) -> None:
        """A tuple stands where it is read, with fields of the type that its reader wants."""
        self.wide[node.var] = with_leaves(node.value, self._as_wide)
        if node.name in self.rounded:
            self.halves[node.var] = with_leaves(node.value, self._as_half)

    def _product(self, node: Node) -> relax.Expr:
        call = read_call(node.value)
        if call is not None:
            return self._attention(node, call)
        x, w = (self._as_half(o) for o in node.value.args[:2])
        if node.op == "matmul":
            return relax.op.matmul(x, w, out_dtype=WIDE)
        a = node.value.attrs
        return relax.op.nn.conv2d(
            x, w, strides=list(a.strides), padding=list(a.padding), dilation=list(a.dilation),
            groups=int(a.groups), data_layout=str(a.data_layout),
            kernel_layout=str(a.kernel_layout), out_layout=str(a.out_layout), out_dtype=WIDE,
        )  # fmt: skip

    def _attention(self, node: Node, call: AttentionCall) -> relax.Expr:
        """Attention sums in float32 whatever it reads; its scales stay steps of its own."""
        places = [_behind_scales(self.graph, o) for o in (call.q, call.k)]
        recipe, scale = call.recipe, places[0].scale * places[1].scale
        if scale != 1.0:
            steps = (ScoreStep("scale", scale), *recipe.steps)
            recipe = dataclasses.replace(recipe, steps=steps)
        q, k = (self._moved(place) for place in places)
        v = self._as_half(call.v)
        masks = tuple(self._as_wide(m) for m in call.masks)
        assert node.shape is not None
        dtype = self.dtype if node.name in self.rounded else WIDE
        return make_call(AttentionCall(q, k, v, masks, recipe), node.shape, dtype)

    def _moved(self, place: _Scaled) -> Any:
        value = self._as_half(place.source)
        for node in reversed(place.moves):
            value = self.builder.emit(with_variables(node.value, {node.operands[0]: value}))
        return value

    def _island(self, node: Node) -> relax.Expr:
        """Float32 as before; a table that is only looked up in is stored as halves all the same."""
        if (
            policy(node.op) == TABLE
            and node.dtype == WIDE
            and isinstance(node.operands[0], GenericConst)
        ):
            table = self._as_half(node.operands[0])
            args = [table, *(self._as_wide(a) for a in node.value.args[1:])]
            rows = self.builder.emit(relax.Call(node.value.op, args, node.value.attrs))
            return rows if node.name in self.rounded else relax.op.astype(rows, WIDE)
        if not any(o in self.halves for o in node.operands if isinstance(o, relax.Var)):
            return with_variables(node.value, self.wide)
        return with_leaves(node.value, self._as_wide)

    def _as_half(self, leaf: Any) -> Any:
        if isinstance(leaf, GenericConst):
            return self._constant(leaf)
        if leaf not in self.halves:
            narrow = relax.op.astype(self.wide[leaf], self.dtype)
            self.halves[leaf] = self.builder.emit(narrow)
        return self.halves[leaf]

    def _as_wide(self, leaf: Any) -> Any:
        if isinstance(leaf, GenericConst):
            return leaf
        if leaf not in self.wide:
            self.wide[leaf] = self.builder.emit(relax.op.astype(self.halves[leaf], WIDE))
        return self.wide[leaf]

    def _constant(self, constant: GenericConst) -> GenericConst:
        """A weight as halves; each is cast once."""
        key = hash(constant)
        if key not in self._constants:
            self._constants[key] = (constant, halved(constant.value.numpy(), self.dtype))
        return self._constants[key][1]


def halved(values: np.ndarray, dtype: str) -> GenericConst:
    """A constant of the half type, rounded to nearest even."""
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    return relax.const(np.ascontiguousarray(values.astype(kind)), dtype)
