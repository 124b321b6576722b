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
from tvmfuse.fusion.plan import Group, Plan
from tvmfuse.hardware import Hardware
from tvmfuse.workload import Workload


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
    groups = []
    for binding in _bindings(fused["main"]):
        members = reader.members(fused, binding)
        if members:
            ops = tuple(reader.ops[m] for m in members)
            rule = _equation(ops) if len(ops) > 1 else ""
            groups.append(Group(members, ops, "vertical" if rule else "", rule))
    return Plan(tuple(groups))


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
        for binding in _bindings(main):
            if _is_kernel(binding):
                name, call = binding.var.name, binding.value
                self.ops[name] = str(call.args[0].name_hint).rstrip("0123456789_")
                self._found[self._key(call, {})] = name

    def members(self, fused: tvm.IRModule, binding: Any) -> tuple[str, ...]:
        """Bindings merged into this binding of the fused ``main``; () for what is no kernel."""
        value = binding.value
        if _is_kernel(binding):
            name = self._lookup(value, {})
            self._origin[binding.var] = name
            return (name,)
        if not (isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)):
            return ()
        function = fused[value.op]
        arguments = [self._identity(a, {}) for a in value.args]
        inside = dict(zip(function.params, arguments, strict=True))
        members = []
        for inner in _bindings(function):
            if _is_kernel(inner):
                members.append(self._lookup(inner.value, inside))
                inside[inner.var] = members[-1]
        if members:
            self._origin[binding.var] = members[-1]
        return tuple(members)

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
