"""Carry out a plan: each group of ``call_tir`` bindings becomes one private Relax function.

Before: ``v1 = call_tir(conv2d, (x, W)); v2 = call_tir(add, (v1, b)); v3 = call_tir(relu, (v2,))``
After:  ``v3 = group_v3(x, W, b)``, a function of attribute ``Primitive`` with the three calls
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvmfuse.errors import BuildError
from tvmfuse.fusion.group import Group
from tvmfuse.fusion.plan import Plan
from tvmfuse.passes.relax_tools import bindings, with_variables

PREFIX = "group_"


def group_bindings(mod: tvm.IRModule, plan: Plan) -> tvm.IRModule:
    """Return ``mod`` with ``main`` calling one function a group.

    Raises
    ------
    BuildError
        When a group of the plan names a binding that is missing or stands in another group.
    """
    owner = _owners(mod, plan)
    main = mod["main"]
    kernels = {gv: f for gv, f in mod.functions_items() if gv.name_hint != "main"}
    builder = relax.BlockBuilder(tvm.IRModule(kernels))
    values: dict[str, Any] = {}
    remap: dict[relax.Var, relax.Expr] = {}
    params = [relax.Var(p.name, p.ty) for p in main.params]
    remap.update(zip(main.params, params, strict=True))
    with builder.function("main", params):
        with builder.dataflow():
            for binding in bindings(main):
                name = binding.var.name
                group = owner.get(name)
                values[name] = binding.value
                if group is None:
                    remap[binding.var] = builder.emit(with_variables(binding.value, remap), name)
                elif name == group.members[-1]:
                    function, arguments = _function(group, values)
                    gv = builder.add_func(function, PREFIX + name)
                    call = relax.Call(gv, [with_variables(a, remap) for a in arguments])
                    remap[binding.var] = builder.emit(call, name)
            outputs = builder.emit_output(with_variables(main.body.body, remap))
        builder.emit_func_output(outputs)
    fused = builder.finalize()
    return relax.transform.DeadCodeElimination(["main"])(fused)


def _owners(mod: tvm.IRModule, plan: Plan) -> dict[str, Group]:
    names = {b.var.name for b in bindings(mod["main"])}
    owner: dict[str, Group] = {}
    for group in plan.groups:
        for member in group.members:
            if member not in names:
                raise BuildError(f"the plan groups {member!r}, which the module does not bind")
            if member in owner:
                raise BuildError(f"the plan puts {member!r} into two groups")
            owner[member] = group
    return owner


def _function(group: Group, values: dict[str, Any]) -> tuple[relax.Function, list[Any]]:
    """The group's own function, and the expressions of ``main`` that it is called with."""
    arguments: list[Any] = []
    inside: dict[str, relax.Expr] = {}
    parameters: list[relax.Var] = []

    def argument(expr: Any) -> Any:
        if isinstance(expr, relax.Var) and expr.name in inside:
            return inside[expr.name]
        if not isinstance(expr, (relax.Var, GenericConst)):
            return expr
        for known, parameter in zip(arguments, parameters, strict=True):
            # A constant gets a parameter of its own each time: the anchor's weight is packed.
            if isinstance(expr, relax.Var) and known.same_as(expr):
                return parameter
        arguments.append(expr)
        parameters.append(relax.Var(f"p{len(parameters)}", expr.ty))
        return parameters[-1]

    chain = []
    for member in group.members:
        call = values[member]
        rewritten = relax.Call(
            call.op,
            [call.args[0], relax.Tuple([argument(a) for a in call.args[1].fields])],
            call.attrs,
            call.ty_args,
        )
        chain.append((member, rewritten, call.ty))
        inside[member] = relax.DataflowVar(member, call.ty)
    return _assemble(chain, parameters, inside), arguments


def _assemble(
    chain: list[tuple[str, relax.Call, Any]],
    parameters: list[relax.Var],
    inside: dict[str, relax.Expr],
) -> relax.Function:
    *inner, (last, last_call, last_type) = chain
    result = relax.Var(last, last_type)
    lines = [relax.VarBinding(inside[name], call) for name, call, _ in inner]
    lines.append(relax.VarBinding(result, last_call))
    body = relax.SeqExpr([relax.DataflowBlock(lines)], result)
    function = relax.Function(parameters, body, last_type, is_pure=True)
    return function.with_attr("Primitive", True)
