"""Casts between halves and float32 become part of the kernels around them.

Rounding joins the element-wise kernel that makes the value, widening every kernel that reads it:
nothing is stored only to be cast, and which operators fuse is the same as in float32.

Before: ``r = cast(h, float32); y = add(x, r); z = cast(y, float16)``
After:  ``z = add(x, h)``, which reads ``h`` as float16, adds in float32 and rounds at the end
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te
from tvm.s_tir import ScheduleError
from tvm.tirx import PrimFunc

from tvmfuse.config import HALVES
from tvmfuse.graph import Graph, Node, dtype_of
from tvmfuse.passes.relax_tools import with_leaves, with_variables
from tvmfuse.precision.mixed import WIDE
from tvmfuse.schedules.anchor import ATTR
from tvmfuse.schedules.base import blocks, has_loops, new_schedule

# Kernels that others find by their form: their operands and results stay what they are.
_FORMED = frozenset(("concat", "concatenate", "attention"))
_WIDEN, _NARROW = "widen", "narrow"  # blocks that are inlined away


@tvm.transform.module_pass(opt_level=0, name="AbsorbCasts")
class AbsorbCasts:
    """Placement: behind ``LegalizeOps``; variable names must be unique."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        graph = Graph(mod)
        if not any(_is_cast(node) for node in graph.nodes.values()):
            return mod
        return _Absorbing(graph, mod).rewritten()


def _is_cast(node: Node) -> bool:
    """Whether a node widens a half, or rounds to one."""
    if node.op != "cast" or len(node.operands) != 1:
        return False
    types = {node.dtype, dtype_of(node.operands[0])}
    return WIDE in types and bool(types & set(HALVES))


class _Absorbing:
    def __init__(self, graph: Graph, mod: tvm.IRModule) -> None:
        self.graph, self.mod = graph, mod
        others = {gv: f for gv, f in mod.functions_items() if gv.name_hint != "main"}
        self.builder = relax.BlockBuilder(tvm.IRModule(others))
        self.remap: dict[relax.Var, Any] = {}
        self._kept: dict[relax.Var, Node] = {}  # widening casts that nobody has needed yet
        self._made: dict[tuple[Any, ...], PrimFunc] = {}
        self._simple: dict[str, bool] = {}

    def rewritten(self) -> tvm.IRModule:
        main = self.mod["main"]
        params = [relax.Var(p.name, p.ty) for p in main.params]
        self.remap.update(zip(main.params, params, strict=True))
        rounding = self._rounding()
        with self.builder.function("main", params):
            with self.builder.dataflow():
                for node in self.graph.nodes.values():
                    if node.name in rounding.values():
                        continue  # emitted with the kernel that it joined
                    if _is_cast(node) and node.dtype == WIDE:
                        self._kept[node.var] = node
                        continue
                    behind = self.graph.nodes.get(rounding.get(node.name, ""))
                    value, target = self._value(node, behind), behind or node
                    self.remap[target.var] = self.builder.emit(value, target.name)
                output = self.builder.emit_output(with_leaves(main.body.body, self._leaf))
            self.builder.emit_func_output(output)
        return relax.transform.DeadCodeElimination(["main"])(self.builder.finalize())

    def _rounding(self) -> dict[str, str]:
        """Kernel to the cast behind it that it can do itself."""
        found = {}
        for node in self.graph.nodes.values():
            if not _is_cast(node) or node.dtype == WIDE:
                continue
            source = self.graph.node(node.operands[0])
            if source is None or self.graph.sole_user(source.name) != node.name:
                continue
            if self._takes_casts(source) and self._is_simple(source):
                found[source.name] = node.name
        return found

    def _function(self, node: Node) -> PrimFunc:
        return self.mod[node.value.args[0]]

    def _takes_casts(self, node: Node) -> bool:
        if node.op in _FORMED or str(getattr(node.value.op, "name", "")) != "relax.call_tir":
            return False
        if not isinstance(node.value.ty, relax.TensorType) or _is_cast(node):
            return False
        return ATTR not in (self._function(node).attrs or {})

    def _is_simple(self, node: Node) -> bool:
        """Whether the kernel is one block without sums."""
        name = str(node.value.args[0].name_hint)
        if name not in self._simple:
            sch = new_schedule(self._function(node))
            found = blocks(sch)
            self._simple[name] = (
                len(found) == 1 and set(found[0].kinds) <= {"S"} and not has_loops(sch, found[0].rv)
            )
        return self._simple[name]

    def _leaf(self, leaf: Any) -> Any:
        """What stands for a variable; a cast that no kernel could take is a kernel of its own."""
        if not isinstance(leaf, relax.Var):
            return leaf
        if leaf not in self.remap:
            node = self._kept[leaf]
            value = with_variables(node.value, self.remap)
            self.remap[leaf] = self.builder.emit(value, node.name)
        return self.remap[leaf]

    def _value(self, node: Node, behind: Node | None) -> Any:
        isolated = not isinstance(node.value, relax.Call) or not self._takes_casts(node)
        if isolated:
            return with_leaves(node.value, self._leaf)
        arguments = list(node.value.args[1].fields)
        casts = {
            i: dtype_of(self._kept[a].operands[0])
            for i, a in enumerate(arguments)
            if isinstance(a, relax.Var) and a in self._kept
        }
        if not casts and behind is None:
            return with_leaves(node.value, self._leaf)
        for i in casts:
            arguments[i] = self._kept[arguments[i]].operands[0]
        narrow = behind.dtype if behind is not None else ""
        key = (str(node.value.args[0].name_hint), tuple(casts.items()), narrow)
        if key not in self._made:
            self._made[key] = with_casts(self._function(node), casts, narrow)
        name = self.builder.add_func(self._made[key], node.op)
        out = node.var.ty if behind is None else behind.var.ty
        return relax.call_tir(name, [self._leaf(a) for a in arguments], out_ty=out)


def with_casts(func: PrimFunc, casts: dict[int, str], narrow: str) -> PrimFunc:
    """The kernel ``(*operands, out)`` with casts inside.

    Parameters
    ----------
    casts
        Operand to the type as which it is read from memory; the kernel goes on in its own.
    narrow
        Type as which the result is stored; empty for the kernel's own. Only for kernels of one
        block without sums.
    """
    last = len(func.params) - 1
    types = [(tuple(int(e) for e in p.ty.shape), str(p.ty.dtype)) for p in func.params]
    builder = relax.BlockBuilder()
    stored = [(s, casts.get(i, d)) for i, (s, d) in enumerate(types[:last])]
    values = [relax.Var(f"p{i}", relax.TensorType(s, d)) for i, (s, d) in enumerate(stored)]

    def call(kernel: PrimFunc, hint: str, args: list[Any], kind: tuple[Any, str]) -> Any:
        kernel = kernel.without_attr("global_symbol")
        name = builder.add_func(kernel, hint)
        return builder.emit(relax.call_tir(name, args, out_ty=relax.TensorType(*kind)))

    with builder.function("fused", values, attrs={"Primitive": True}, private=True):
        with builder.dataflow():
            wide = list(values)
            for i, dtype in casts.items():
                shape, own = types[i]
                wide[i] = call(_cast(shape, dtype, own, f"{_WIDEN}{i}"), _WIDEN, [values[i]],
                               types[i])  # fmt: skip
            result = call(func, "kernel", wide, types[last])
            if narrow:
                shape, own = types[last]
                cast = _cast(shape, own, narrow, _NARROW)
                result = call(cast, _NARROW, [result], (shape, narrow))
            out = builder.emit_output(result)
        fused = builder.emit_func_output(out)
    outer = [relax.Var(f"a{i}", v.ty) for i, v in enumerate(values)]
    with builder.function("main", outer):
        with builder.dataflow():
            out = builder.emit_output(relax.Call(fused, outer))
        builder.emit_func_output(out)
    merged = relax.transform.FuseTIR()(builder.finalize())
    (kernel,) = (f for f in merged.functions.values() if isinstance(f, PrimFunc))
    return _inlined(kernel, func, bool(narrow))


def _cast(shape: tuple[int, ...], source: str, target: str, name: str) -> PrimFunc:
    x = te.placeholder(shape, source, name="x")
    y = te.compute(shape, lambda *i: x(*i).astype(target), name=name)
    return te.create_prim_func([x, y], index_dtype_override="int64")


def _inlined(kernel: PrimFunc, func: PrimFunc, narrow: bool) -> PrimFunc:
    """The merged kernel without blocks for its casts, and with the attributes of the plain one."""
    sch = new_schedule(kernel)
    for block in blocks(sch):
        if block.name.startswith(_WIDEN) or (narrow and block.name != _NARROW):
            try:
                sch.compute_inline(block.rv)
            except ScheduleError:
                continue  # the template inlines it, or stores a tile of it
    made = sch.mod["main"].without_attr("global_symbol")
    for name, value in (func.attrs or {}).items():
        if str(name) not in ("global_symbol",):
            made = made.with_attr(str(name), value)
    return made
