"""Let kernels write their results beside each other, where a concatenation would have copied them.

Before: ``a = k1(x); b = k2(y); c = concatenate(a, b); d = k3(a)``
After:  ``t = k1_at_0(x); c = k2_at_64(y, t); d = k3_from_0(c)``, all in the memory of ``c``

It is done behind scheduling: a schedule, and with it a tuning record, does not depend on where the
result or an operand lies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import relax

from tvmfuse.passes.relax_tools import bindings, ints, op_name, shape_of, with_variables
from tvmfuse.passes.relocate import Step, reading, relocated
from tvmfuse.passes.rewriter import MainRewriter


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
        A kernel uses its result or a part in a way that cannot be moved: the planner should have
        refused.
    """
    places = tuple(places)
    return _Rewriter(mod, places).run() if places else mod


class _Layout:
    """Where every part lies in the tensor that is made at last."""

    def __init__(self, main: relax.Function, places: Sequence[Any]) -> None:
        self._place_of = {name: place for place in places for name in place.inside}
        self.staying = {part: begin for place in places for part, begin in place.staying}
        self.concats = {place.name for place in places}
        self.types: dict[str, Any] = {}
        self.views: set[str] = set()
        self._read_as: dict[str, tuple[int, ...]] = {}
        for binding in bindings(main):
            name = str(binding.var.name)
            if name in self.concats or name in self._place_of:
                self.types[name] = binding.var.ty
        operands = {
            str(leaf.name)
            for b in bindings(main) if b.var.name in self.concats
            for leaf in b.value.args[1].fields if isinstance(leaf, relax.Var)
        }  # fmt: skip
        for binding in bindings(main):
            if op_name(binding.value) == "relax.reshape" and binding.var.name in operands:
                source = str(getattr(binding.value.args[0], "name", ""))
                if source in self._place_of:
                    self._read_as[source] = shape_of(binding.var) or ()
                    self.views.add(str(binding.var.name))
        self.leaves = {
            concat: sum(
                self.root(p) == concat
                for p in self._place_of
                if p not in self.concats and p not in self.staying
            )
            for concat in self.concats
        }

    def is_part(self, name: str) -> bool:
        """Whether a tensor lies in another one."""
        return name in self._place_of

    def root(self, name: str) -> str:
        """The tensor in which one lies at last."""
        while name in self._place_of:
            name = self._place_of[name].name
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a part or a concatenation, as it is made."""
        return tuple(ints(self.types[name].shape))

    def _stands(self, name: str) -> tuple[int, ...]:
        """Its shape as the concatenation reads it."""
        return self._read_as.get(name, self.shape(name))

    def steps(self, name: str) -> tuple[Step, ...]:
        """How an index of a part becomes an index of its root."""
        found = []
        while name in self._place_of:
            place = self._place_of[name]
            if name == place.base or name in self.staying:
                offset = self.staying.get(name, 0)
            else:
                before = place.parts[: place.parts.index(name)]
                offset = sum(self._stands(p)[place.axis] for p in before)
            found.append(Step(self.shape(name), self._stands(name), place.axis, offset))
            name = place.name
        return tuple(found)


class _Rewriter(MainRewriter):
    """Leaves the concatenations out."""

    def __init__(self, mod: tvm.IRModule, places: Sequence[Any]) -> None:
        super().__init__(mod)
        self.layout = _Layout(self.main, places)
        self.moved: dict[Any, Any] = {}
        self.written: dict[str, Any] = {}  # of each root, its memory so far
        self.left = dict(self.layout.leaves)

    def write(self, binding: Any) -> None:
        """See :class:`MainRewriter`."""
        layout, name = self.layout, str(binding.var.name)
        if name in layout.views or name in layout.staying:
            return
        if name in layout.concats:
            self.remap[binding.var] = self.written[layout.root(name)]
            return
        value = self._read(binding.value)
        if layout.is_part(name):
            self.remap[binding.var] = self._write(name, value)
        else:
            self.remap[binding.var] = self.builder.emit(value, name)

    def _read(self, value: Any) -> Any:
        """A value of ``main`` that reads parts where they lie."""
        if op_name(value) != "relax.call_tir":
            return with_variables(value, self.remap)
        kernel, arguments = value.args[0], list(value.args[1].fields)
        for place, argument in enumerate(arguments):
            part = str(argument.name) if isinstance(argument, relax.Var) else ""
            if self.layout.is_part(part):
                kernel = self._kernel(kernel, place, part, reads=True)
                arguments[place] = self.written[self.layout.root(part)]
            else:
                arguments[place] = with_variables(argument, self.remap)
        return relax.call_tir(kernel, arguments, out_ty=value.ty)

    def _write(self, name: str, call: relax.Call) -> relax.Var:
        """Emit the call of one part; the variable stands for the whole, as far as it is written."""
        root = self.layout.root(name)
        ty, arguments = self.layout.types[root], list(call.args[1].fields)
        kernel = self._kernel(call.args[0], len(arguments), name)
        whole = self.written.get(root)
        if whole is None:
            new = relax.call_tir(kernel, arguments, out_ty=ty)
        else:
            new = relax.op.call_tir_inplace(kernel, [*arguments, whole], [len(arguments)], ty)
        self.left[root] -= 1
        # The last one makes the whole complete, and is compared with the concatenation's value.
        said = root if not self.left[root] else f"{name}__part"
        self.written[root] = self.builder.emit(new, said)
        return self.written[root]

    def _kernel(self, gv: Any, place: int, part: str, reads: bool = False) -> Any:
        """The kernel with one of its tensors in the root of ``part``."""
        steps, shape = self.layout.steps(part), self.layout.shape(self.layout.root(part))
        key = (str(gv.name_hint), place, shape, steps)
        if key not in self.moved:
            moved = relocated(self.builder.get()[gv], place, shape, steps)
            if reads:
                moved = reading(moved, place, math.prod(self.layout.shape(part)))
            name = f"{gv.name_hint}_{'from' if reads else 'at'}_{steps[0].offset}"
            self.moved[key] = self.builder.add_func(moved.without_attr("global_symbol"), name)
        return self.moved[key]
