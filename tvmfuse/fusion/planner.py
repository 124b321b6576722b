"""Make the plan: in this release TVM's FuseOps decides, behind the interface of `Plan`.

FuseOps grows a chain of element-wise operators behind each anchor, and merges element-wise and
injective operators among themselves: vertical fusion. It is run on a copy of the module, its
groups are read off, and nothing is changed.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from tvmfuse.errors import BuildError
from tvmfuse.fusion.plan import Group, Plan, Refusal
from tvmfuse.hardware import Hardware
from tvmfuse.workload import Workload

# Templates inline a group into one expression, in which a value that is read twice stands twice:
# chains with diamonds grow exponentially and stop compiling.
MAX_EXPRESSION = 256


def make_plan(workload: Workload, hardware: Hardware) -> Plan:
    """Group the kernels of a lowered workload.

    Parameters
    ----------
    workload
        After `tvmfuse.passes.lower`: ``main`` is a chain of ``call_tir`` with unique names.
    hardware
        The target; FuseOps itself does not look at it.

    Returns
    -------
    Plan
        Every ``call_tir`` that returns one tensor stands in exactly one group.
    """
    annotated = relax.transform.AnnotateTIROpPattern()(workload.module)
    fused = relax.transform.FuseOps()(annotated)
    reader = _GroupReader(workload.module["main"])
    groups: list[Group] = []
    refused: list[Refusal] = []
    for binding in _bindings(fused["main"]):
        members = reader.members(fused, binding)
        ops = tuple(reader.ops[m] for m in members)
        size = reader.expression_size(members)
        if size > MAX_EXPRESSION:
            reason = f"inlined, its {len(ops)} operators would become {size} in one expression"
            refused.append(Refusal(_equation(ops), reason))
            groups += [Group((m,), (op,)) for m, op in zip(members, ops, strict=True)]
        elif members:
            rule = _equation(ops) if len(ops) > 1 else ""
            groups.append(Group(members, ops, "vertical" if rule else "", rule))
    return Plan(tuple(groups), tuple(refused))


def _bindings(func: relax.Function) -> list[Any]:
    return [b for block in func.body.blocks for b in block.bindings]


def _is_call_tir(expr: Any) -> bool:
    return isinstance(expr, relax.Call) and str(getattr(expr.op, "name", "")) == "relax.call_tir"


def _is_kernel(binding: Any) -> bool:
    return _is_call_tir(binding.value) and isinstance(binding.value.ty, relax.TensorType)


class _GroupReader:
    """Find the bindings of ``main`` that FuseOps merged, by what they call and on what.

    FuseOps shares one function among equal groups and renames results, so names do not lead
    back; a callee together with its arguments does, since equal calls were merged before.
    """

    def __init__(self, main: relax.Function) -> None:
        self.ops: dict[str, str] = {}
        self._found: dict[tuple[Any, ...], str] = {}
        self._origin: dict[relax.Var, str] = {}
        self._reads: dict[str, list[str]] = {}
        for binding in _bindings(main):
            name, value = binding.var.name, binding.value
            if isinstance(value, relax.TupleGetItem):
                self._found[self._item_key(value, {})] = name
            if _is_call_tir(value):
                self._found[self._key(value, {})] = name
            if _is_kernel(binding):
                self.ops[name] = str(value.args[0].name_hint).rstrip("0123456789_")
                fields = value.args[1].fields
                self._reads[name] = [f.name for f in fields if isinstance(f, relax.Var)]

    def members(self, fused: tvm.IRModule, binding: Any) -> tuple[str, ...]:
        """Bindings merged into this binding of the fused ``main``; () for what is no kernel."""
        value = binding.value
        members: list[str] = []
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            function = fused[value.op]
            arguments = [self._identity(a, {}) for a in value.args]
            inside = dict(zip(function.params, arguments, strict=True))
            for inner in _bindings(function):
                self._trace(inner, inside, members)
            last = _bindings(function)[-1].var
            if last in inside:
                self._origin[binding.var] = inside[last]
        else:
            self._trace(binding, self._origin, members)
        return tuple(members)

    def _trace(self, binding: Any, origin: dict[Any, Any], members: list[str]) -> None:
        """Note which original binding this one is, and whether it is a kernel."""
        value = binding.value
        if isinstance(value, relax.TupleGetItem):
            name = self._found.get(self._item_key(value, origin))
            if name is not None:
                origin[binding.var] = name
        elif _is_call_tir(value):
            origin[binding.var] = self._lookup(value, origin)
            if _is_kernel(binding):
                members.append(origin[binding.var])

    def expression_size(self, members: tuple[str, ...]) -> int:
        """Operators in the expression of the last member, repeated as often as they are read."""
        size: dict[str, int] = {}
        for member in members:
            size[member] = 1 + sum(size.get(read, 0) for read in self._reads[member])
        return size[members[-1]] if members else 0

    def _item_key(self, item: relax.TupleGetItem, inside: dict[Any, Any]) -> tuple[Any, ...]:
        return ("item", self._identity(item.tuple_value, inside), int(item.index))

    def _lookup(self, call: relax.Call, inside: dict[Any, Any]) -> str:
        key = self._key(call, inside)
        if key not in self._found:
            raise BuildError(f"FuseOps made a call of {key[0]} that the lowered module has not")
        return self._found[key]

    def _key(self, call: relax.Call, inside: dict[Any, Any]) -> tuple[Any, ...]:
        fields = (self._identity(f, inside) for f in call.args[1].fields)
        return (str(call.args[0].name_hint), *fields)

    def _identity(self, expr: Any, inside: dict[Any, Any]) -> Any:
        if isinstance(expr, relax.Var):
            return inside.get(expr) or self._origin.get(expr) or expr.name
        return hash(expr)


def _equation(ops: tuple[str, ...]) -> str:
    text = f"{ops[0]}(x)"
    for op in ops[1:]:
        text = f"{op}({text})"
    return text
