"""Integer operators become kernels that read bytes.

Before: ``conv2d(subtract(astype(q, int32), z), W)`` of int32
After:  one kernel with an `IntegerConv2d` record that reads ``q``; `specialize` packs ``W``

Before: ``add(y, multiply(subtract(astype(q, float32), z), s))``, a residual in bytes
After:  one kernel that reads ``y`` and ``q``, and so can join the convolution that gives ``y``

Before: ``mean(multiply(subtract(astype(q, float32), z), s))``
After:  the sum of the bytes as int32, which is exact, scaled once

Before: the seven operators that quantising is said in      After: one kernel, ``quantize``
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvmfuse.graph import Graph, Node
from tvmfuse.hardware import Hardware
from tvmfuse.passes.lower_anchors import conv2d_anchor, dense_anchor, padded_channels
from tvmfuse.passes.qdq import BYTES, FLOAT
from tvmfuse.passes.relax_tools import (
    array_of,
    constant,
    dtype_of,
    ints,
    op_name,
    shape_of,
    with_variables,
)
from tvmfuse.schedules.anchor import ATTR, IntegerConv2d, IntegerDense, to_text
from tvmfuse.schedules.cpu.integer import naive
from tvmfuse.schedules.variant import OUT_ELEMWISE_FUSABLE

_MOVES = ("relax.permute_dims", "relax.reshape", "relax.strided_slice")
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "multiply": lambda a, b: a * b,
    "subtract": lambda a, b: a - b,
}


@dataclasses.dataclass(frozen=True)
class _Bytes:
    """``(source - zero) * scale`` behind moves of its elements."""

    source: Any
    zero: int
    scale: float
    moves: tuple[relax.Call, ...] = ()


class _Lowering:
    """One run over ``main``: what each node becomes."""

    def __init__(self, graph: Graph, hardware: Hardware, builder: relax.BlockBuilder) -> None:
        self._graph, self._hardware, self._builder = graph, hardware, builder

    def lowered(self, node: Node, new: Callable[[Any], Any]) -> relax.Expr | None:
        """The node in the new function; None where it stays. ``new`` gives its operands there."""
        if node.op in ("nn.conv2d", "matmul") and node.dtype == "int32":
            return self._product(node, new)
        if node.op in _BINARY and node.dtype == FLOAT:
            return self._binary(node, new)
        if node.op == "mean" and node.dtype == FLOAT:
            return self._mean(node, new)
        if node.op == "astype" and node.dtype in BYTES:
            return self._quantize(node, new)
        return None

    def _value(self, expr: Any) -> Any:
        node = self._graph.node(expr)
        return None if node is None else node.value

    def _number(self, expr: Any) -> float | None:
        values = array_of(expr)
        return float(values.reshape(())) if values is not None and values.size == 1 else None

    def _step(self, expr: Any, name: str) -> tuple[Any, float] | None:
        """Operand and number of ``name(x, number)``."""
        call = self._value(expr)
        if op_name(call) != f"relax.{name}":
            return None
        number = self._number(call.args[1])
        return None if number is None else (call.args[0], number)

    def _bytes(self, expr: Any, dtype: str) -> _Bytes | None:
        """What bytes ``expr`` is made of, as int32 without a scale or as float32 with one."""
        moves: list[relax.Call] = []
        call = self._value(expr)
        while op_name(call) in _MOVES:
            moves.insert(0, call)
            expr = call.args[0]
            call = self._value(expr)
        scale, zero = 1.0, 0.0
        if dtype == FLOAT:
            found = self._step(expr, "multiply")
            if found is None:
                return None
            expr, scale = found
        shifted = self._step(expr, "subtract")
        if shifted is not None:
            expr, zero = shifted
        elif dtype == FLOAT:
            return None
        wide = self._value(expr)
        if op_name(wide) != "relax.astype" or dtype_of(wide) != dtype:
            return None
        source = wide.args[0]
        return _Bytes(source, int(zero), scale, tuple(moves)) if dtype_of(source) in BYTES else None

    def _moved(self, found: _Bytes, new: Callable[[Any], Any]) -> relax.Expr:
        """The bytes behind the moves."""
        source = new(found.source)
        for move in found.moves:
            moved = relax.Call(move.op, [source, *move.args[1:]], move.attrs)
            source = self._builder.emit(moved)
        return source

    def _product(self, node: Node, new: Callable[[Any], Any]) -> relax.Expr | None:
        found = self._bytes(node.value.args[0], "int32")
        weight = array_of(node.value.args[1])
        if found is None or weight is None or dtype_of(found.source) != "uint8":
            return None
        convolves = node.op == "nn.conv2d"
        plain = conv2d_anchor(node.value) if convolves else dense_anchor(node.value)
        if plain is None:
            return None
        kind = IntegerConv2d if convolves else IntegerDense
        anchor: Any = kind(**{**vars(plain), "dtype": "uint8"}, zero=found.zero)
        weight = weight.astype(np.int8)
        wide = dataclasses.replace(anchor, O=padded_channels(anchor, self._hardware))
        if wide != anchor:
            width = [(0, 0)] * weight.ndim
            width[0 if convolves else 1] = (0, wide.O - anchor.O)
            weight = np.pad(weight, width)
        x = self._moved(found, new)
        attrs = {ATTR: to_text(wide), "op_pattern": OUT_ELEMWISE_FUSABLE}
        hint = "conv2d" if convolves else "dense"
        y = self._builder.call_te(
            naive(wide), x, constant(weight), primfunc_name_hint=hint, primfunc_attrs=attrs
        )
        if wide == anchor:
            return y
        shape = node.shape
        return self._builder.call_te(
            lambda t: te.compute(shape, lambda *i: t(*i), name="slice"),
            self._builder.emit(y),
            primfunc_name_hint="slice",
        )

    def _binary(self, node: Node, new: Callable[[Any], Any]) -> relax.Expr | None:
        found = [self._bytes(a, FLOAT) for a in node.value.args]
        if not any(found) or any(
            shape_of(a) != node.shape for a, f in zip(node.value.args, found, strict=True) if f
        ):
            return None
        operands = [
            new(a) if f is None else self._moved(f, new)
            for a, f in zip(node.value.args, found, strict=True)
        ]
        combine, shape = _BINARY[node.op], node.shape

        def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
            def body(*at: Any) -> Any:
                read = [_element(t, at, f) for t, f in zip((a, b), found, strict=True)]
                return combine(*read)

            return te.compute(shape, body, name=f"T_{node.op}")

        return self._builder.call_te(compute, *operands, primfunc_name_hint=node.op)

    def _mean(self, node: Node, new: Callable[[Any], Any]) -> relax.Expr | None:
        found = self._bytes(node.value.args[0], FLOAT)
        shape = shape_of(node.value.args[0])
        if found is None or shape is None or node.shape is None or node.value.attrs.axis is None:
            return None
        axes = sorted(a % len(shape) for a in ints(node.value.attrs.axis))
        count = math.prod(shape[a] for a in axes)
        if count * 255 >= 2**31 or not count:
            return None
        keep = [a for a in range(len(shape)) if a not in axes]
        result, keeps = node.shape, bool(node.value.attrs.keepdims)
        place = {a: a if keeps else i for i, a in enumerate(keep)}

        def total(x: te.Tensor) -> te.Tensor:
            along = {a: te.reduce_axis((0, shape[a]), f"k{a}") for a in axes}

            def body(*at: Any) -> Any:
                index = [along[a] if a in along else at[place[a]] for a in range(len(shape))]
                return te.sum(x(*index).astype("int32"), axis=list(along.values()))

            return te.compute(result, body, name="sum_red")

        sums = self._builder.emit(
            self._builder.call_te(total, self._moved(found, new), primfunc_name_hint="sum")
        )
        scale = tirx.const(found.scale, FLOAT)
        part, zero = tirx.const(1.0 / count, FLOAT), tirx.const(float(found.zero), FLOAT)
        return self._builder.call_te(
            lambda t: te.compute(
                result, lambda *i: (t(*i).astype(FLOAT) * part - zero) * scale, name="dequantize"
            ),
            sums,
            primfunc_name_hint="dequantize",
        )

    def _quantize(self, node: Node, new: Callable[[Any], Any]) -> relax.Expr | None:
        limits, expr = np.iinfo(node.dtype), node.value.args[0]
        numbers = []
        for name in ("minimum", "maximum", "add"):
            found = self._step(expr, name)
            if found is None:
                return None
            expr, number = found
            numbers.append(number)
        high, low, zero = numbers
        whole = self._value(expr)
        if (low, high) != (limits.min, limits.max) or op_name(whole) != "relax.round":
            return None
        scaled = self._step(whole.args[0], "multiply")
        if scaled is None:
            return None
        source, inverse = scaled
        shape, dtype = node.shape, node.dtype

        def compute(x: te.Tensor) -> te.Tensor:
            def body(*at: Any) -> Any:
                value = tirx.nearbyint(x(*at) * tirx.const(inverse, FLOAT))
                value = value + tirx.const(zero, FLOAT)
                # max(a, b) is b where a is NaN: it becomes the lowest number, as in PyTorch.
                value = tirx.max(value, tirx.const(low, FLOAT))
                return tirx.min(value, tirx.const(high, FLOAT)).astype(dtype)

            return te.compute(shape, body, name="quantize")

        return self._builder.call_te(compute, new(source), primfunc_name_hint="quantize")


def _element(tensor: te.Tensor, at: tuple[Any, ...], found: _Bytes | None) -> Any:
    """One element of an operand, dequantised or broadcast."""
    if found is not None:
        value = tensor(*at).astype(FLOAT) - tirx.const(float(found.zero), FLOAT)
        return value * tirx.const(found.scale, FLOAT)
    own = at[len(at) - len(tensor.shape) :]
    return tensor(*(0 if int(e) == 1 else i for i, e in zip(own, tensor.shape, strict=True)))


@tvm.transform.module_pass(opt_level=0, name="LowerIntegers")
class LowerIntegers:
    """Placement: behind the last pass that changes data movement, before ``LegalizeOps``."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``; nothing changes in a model without bytes."""
        graph = Graph(mod)
        if self._hardware.kind != "llvm" or not any(
            n.op == "astype" and {n.dtype, *(dtype_of(o) for o in n.operands)} & set(BYTES)
            for n in graph.nodes.values()
        ):
            return mod
        main = mod["main"]
        others = {gv: f for gv, f in mod.functions_items() if gv.name_hint != "main"}
        builder = relax.BlockBuilder(tvm.IRModule(others))
        lowering = _Lowering(graph, self._hardware, builder)
        params = [relax.Var(p.name, p.ty) for p in main.params]
        remap: dict[relax.Var, Any] = dict(zip(main.params, params, strict=True))
        with builder.function("main", params):
            with builder.dataflow():
                for node in graph.nodes.values():
                    value = lowering.lowered(node, lambda e: with_variables(e, remap))
                    if value is None:
                        value = with_variables(node.value, remap)
                    remap[node.var] = builder.emit(value, node.name)
                output = builder.emit_output(with_variables(main.body.body, remap))
            builder.emit_func_output(output)
        return relax.transform.DeadCodeElimination(["main"])(builder.finalize())
