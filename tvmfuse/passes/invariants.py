"""What must hold behind the fusing pass: nothing lost, nothing twice, nothing read from inside."""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GlobalVar

from tvmfuse.errors import BuildError
from tvmfuse.fusion.plan import Plan
from tvmfuse.passes.relax_tools import bindings


def check_fused(before: tvm.IRModule, after: tvm.IRModule, plan: Plan) -> None:
    """Check that a fused module holds every operator in exactly one group.

    Each group that somebody reads is called once; its function (which equal groups share) calls
    the kernels of its members in order, reads its inputs alone and gives out the last member's
    value; no planned kernel is left in ``main``; and ``main`` reads only what it binds, so that
    every edge between groups is an output of one and an input of the other.

    Parameters
    ----------
    before
        The lowered module.
    after
        The module with one function a group.
    plan
        What was carried out.

    Raises
    ------
    BuildError
        Names the operator or the group: a fault of a pass, never silent.
    """
    kernels = {str(b.var.name): _callee(b.value) for b in bindings(before["main"])}
    groups = {group.members[-1]: group for group in plan.groups}
    planned = {member for group in plan.groups for member in group.members}
    bound = {str(p.name) for p in after["main"].params}
    called: Counter[str] = Counter()
    for binding in bindings(after["main"]):
        value, name = binding.value, str(binding.var.name)
        for read in relax.analysis.free_vars(value):
            if str(read.name) not in bound:
                raise BuildError(f"{name!r} reads {read.name!r}, which no group gives out")
        bound.add(name)
        if isinstance(value, relax.Call) and isinstance(value.op, GlobalVar):
            if name not in groups:
                raise BuildError(f"a group gives out {name!r}, which the plan does not name")
            called[name] += 1
            wanted = [kernels.get(member, "") for member in groups[name].members]
            _check_group(after[value.op], name, wanted)
        elif _callee(value) and name in planned:
            raise BuildError(f"{name!r} stands outside of its group")
    live = _live(before)
    for name in groups:
        if called[name] != 1 and (called[name] or name in live):
            raise BuildError(f"the group of {name!r} is called {called[name]} times, not once")


def _callee(value: Any) -> str:
    """The PrimFunc that a ``call_tir`` calls; empty for anything else."""
    is_call = isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_tir"
    return str(value.args[0].name_hint) if is_call else ""


def _check_group(function: relax.Function, name: str, wanted: list[str]) -> None:
    inside = set(function.params)
    found = []
    for binding in bindings(function):
        for read in relax.analysis.free_vars(binding.value):
            if read not in inside:
                raise BuildError(
                    f"the group of {name!r} reads {read.name!r}, which is no input of it"
                )
        inside.add(binding.var)
        found.append(_callee(binding.value))
    if found != wanted:
        raise BuildError(
            f"the group of {name!r} holds {', '.join(found)} instead of {', '.join(wanted)}"
        )
    last = bindings(function)[-1].var
    if not function.body.body.same_as(last):
        raise BuildError(f"the group of {name!r} does not give out its last member")


def _live(mod: tvm.IRModule) -> set[str]:
    """Bindings of ``main`` whose value reaches the result."""
    main = mod["main"]
    live = {str(v.name) for v in relax.analysis.free_vars(main.body.body)}
    for binding in reversed(bindings(main)):
        if str(binding.var.name) in live:
            live.update(str(v.name) for v in relax.analysis.free_vars(binding.value))
    return live
