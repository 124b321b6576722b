"""Let kernels write their results beside each other, where a concatenation would have copied them.

Before: ``a = k1(x); b = k2(y); c = concatenate(a, b)``
After:  ``t = k1_at_0(x); c = k2_at_64(y, t)``, both in the memory of ``c``

It is done behind scheduling: a schedule, and with it a tuning record, does not depend on where the
result lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad, TensorRegion
from tvm.tirx import PrimFunc

from tvmfuse.errors import BuildError
from tvmfuse.passes.relax_tools import bindings, ints, mentions, shape_of, with_variables


def write_in_place(mod: tvm.IRModule, places: Iterable[Any]) -> tvm.IRModule:
    """Remove concatenations.

    Parameters
    ----------
    mod
        ``main`` is a chain of ``call_tir`` of scheduled kernels.
    places
        :class:`tvmfuse.fusion.group.InPlace` for each concatenation to remove.

    Raises
    ------
    BuildError
        A kernel uses its result in a way that cannot be moved: the planner should have refused.
    """
    places = tuple(places)
    return _Rewriter(mod, places).run() if places else mod


class _Rewriter:
    """Walks over ``main`` once and writes it anew."""

    def __init__(self, mod: tvm.IRModule, places: Sequence[Any]) -> None:
        self.mod, self.main = mod, mod["main"]
        functions = {gv: f for gv, f in mod.functions_items() if gv.name_hint != "main"}
        self.builder = relax.BlockBuilder(tvm.IRModule(functions))
        self.moved: dict[tuple[str, tuple[int, ...], int, int], Any] = {}
        self.place_of = {part: place for place in places for part in place.parts}
        self.concats = {place.name for place in places}
        self.types = {
            str(b.var.name): b.var.ty for b in bindings(self.main) if b.var.name in self.concats
        }
        self.written: dict[str, Any] = {}  # of each concatenation, its memory so far
        self.left = {place.name: len(place.parts) for place in places}
        self.widths = {
            str(b.var.name): shape_of(b.var) for b in bindings(self.main)
            if b.var.name in self.place_of
        }  # fmt: skip

    def run(self) -> tvm.IRModule:
        """The module without the concatenations."""
        remap: dict[Any, Any] = {p: relax.Var(p.name, p.ty) for p in self.main.params}
        with self.builder.function("main", list(remap.values())):
            with self.builder.dataflow():
                for binding in bindings(self.main):
                    name = str(binding.var.name)
                    if name in self.concats:
                        remap[binding.var] = self.written[name]
                        continue
                    value = with_variables(binding.value, remap)
                    if name in self.place_of:
                        remap[binding.var] = self._write(name, value)
                    else:
                        remap[binding.var] = self.builder.emit(value, name)
                outputs = self.builder.emit_output(with_variables(self.main.body.body, remap))
            self.builder.emit_func_output(outputs)
        return relax.transform.DeadCodeElimination(["main"])(self.builder.finalize())

    def _write(self, name: str, call: relax.Call) -> relax.Var:
        """Emit the call of one part; the variable stands for the whole, as far as it is written."""
        place = self.place_of[name]
        ty = self.types[place.name]
        widths = [self.widths[part] for part in place.parts]
        before = place.parts.index(name)
        offset = sum(w[place.axis] for w in widths[:before] if w is not None)
        kernel = self._kernel(call.args[0], ints(ty.shape), place.axis, offset)
        arguments = list(call.args[1].fields)
        whole = self.written.get(place.name)
        if whole is None:
            new = relax.call_tir(kernel, arguments, out_ty=ty)
        else:
            new = relax.op.call_tir_inplace(kernel, [*arguments, whole], [len(arguments)], ty)
        self.left[place.name] -= 1
        # The last one makes the whole complete, and is compared with the concatenation's value.
        said = place.name if not self.left[place.name] else f"{name}__part"
        self.written[place.name] = self.builder.emit(new, said)
        return self.written[place.name]

    def _kernel(self, gv: Any, shape: tuple[int, ...], axis: int, offset: int) -> Any:
        key = (str(gv.name_hint), shape, axis, offset)
        if key not in self.moved:
            moved = moved_result(self.mod[gv], shape, axis, offset)
            name = f"{gv.name_hint}_at_{offset}"
            self.moved[key] = self.builder.add_func(moved.without_attr("global_symbol"), name)
        return self.moved[key]


def moved_result(kernel: PrimFunc, shape: tuple[int, ...], axis: int, offset: int) -> PrimFunc:
    """The kernel with its result ``offset`` places into an axis of a larger tensor.

    Parameters
    ----------
    kernel
        Scheduled; its last parameter is its result.
    shape
        Of the larger tensor.
    axis, offset
        Where the result lies in it.

    Raises
    ------
    BuildError
        The kernel takes the address of its result, or has it in another shape.
    """
    *given, old = kernel.params
    own = ints(old.ty.shape)
    if len(own) != len(shape) or any(o != s for a, (o, s) in enumerate(zip(own, shape, strict=True))
                                     if a != axis):  # fmt: skip
        raise BuildError(f"a kernel whose result is {own} cannot write a part of {shape}")
    big = tirx.decl_buffer(shape, str(old.ty.dtype), name=str(old.name))

    def at(indices: Any) -> list[Any]:
        found = list(indices)
        found[axis] = found[axis] + tirx.const(offset, "int64")
        return found

    def store(node: Any) -> Any:
        mine = node.buffer.same_as(old)
        return tirx.BufferStore(big, node.value, at(node.indices)) if mine else node

    def load(node: Any) -> Any:
        return tirx.BufferLoad(big, at(node.indices)) if node.source.same_as(old) else node

    def region(node: Any) -> Any:
        if not node.source.same_as(old):
            return node
        mins = at([r.min for r in node.region])
        ranges = [
            Range.from_min_extent(m, r.extent) for m, r in zip(mins, node.region, strict=True)
        ]
        return tirx.BufferRegion(big, ranges)

    body = tvm_ffi.structural_map(
        kernel.body, [(tirx.BufferStore, store), (TensorLoad, load), (TensorRegion, region)]
    )
    if mentions(body, old):
        raise BuildError(f"a kernel takes the address of its result {old.name}: it cannot be moved")
    return PrimFunc([*given, big], body, kernel.ret_type, attrs=kernel.attrs)
