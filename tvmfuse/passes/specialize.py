"""Choose a variant for each group, pack its weight, and turn the group into one kernel.

Kernels of all groups are made by the same two steps, for the final module as for tuning: swap the
anchor's naive kernel for the variant's, then let FuseTIR merge the group into one PrimFunc.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.tirx import PrimFunc

from tvmfuse.errors import BuildError
from tvmfuse.graph import op_of
from tvmfuse.hardware import Hardware
from tvmfuse.passes.group import PREFIX
from tvmfuse.passes.relax_tools import array_of, bindings, constant, with_variables
from tvmfuse.schedules.anchor import ATTR, from_text
from tvmfuse.schedules.variant import AnyVariant, Variant, WrittenVariant
from tvmfuse.schedules.variants import variants

_Cache = dict[int, list[tuple[tvm.IRModule, tuple[PrimFunc, ...]]]]
_ACROSS = 16  # times the cycles of a kernel that writes whole vectors across the rows of its result
_FROM_VARIABLE = re.compile(r'"v[0-9]+_')


@dataclass(frozen=True)
class GroupKernel:
    """One group of the fused module with the kernels that can compute it.

    Parameters
    ----------
    name
        Name of the group's function in the module.
    variants
        Algorithms for its anchor, the model's favourite first; empty for a group without one.
    kernels
        One unscheduled PrimFunc a variant (or the only one), named ``main``.
    weight
        Which parameter of the group is the anchor's weight; -1 for a group without an
        anchor, or whose anchor has no constant weight.
    key
        Structural hash of the group as sixteen hexadecimal digits, whatever its variants.
    """

    name: str
    variants: tuple[AnyVariant, ...]
    kernels: tuple[PrimFunc, ...]
    weight: int
    key: str = ""


def group_kernels(mod: tvm.IRModule, hardware: Hardware) -> list[GroupKernel]:
    """Kernels of every group in order of ``main``."""
    cache: _Cache = {}
    return [group_kernel(mod, mod[name], name, hardware, cache) for name in group_names(mod)]


def group_kernel(
    mod: tvm.IRModule,
    function: relax.Function,
    name: str,
    hardware: Hardware,
    cache: _Cache | None = None,
) -> GroupKernel:
    """Kernels of one group, given by its function over kernels of ``mod``."""
    anchor_call, text = _anchor_of(mod, function)
    choices = variants(from_text(text), hardware) if text else ()
    if len(choices) > 1 and _moves(function):
        choices = tuple(sorted((_across(v) for v in choices), key=lambda v: v.cycles))
    kernels, key = _kernels(mod, function, choices, anchor_call, {} if cache is None else cache)
    weighted = any(isinstance(v, Variant) for v in choices)
    weight = _weight_index(function, anchor_call) if weighted else -1
    return GroupKernel(name, choices, kernels, weight, key)


def _across(variant: AnyVariant) -> AnyVariant:
    """The variant where a transpose is part of the group: dear, unless its template knows that.

    It stays all the same, for where a result has to be rounded less.
    """
    if not isinstance(variant, Variant) or variant.moves:
        return variant
    return dataclasses.replace(variant, cycles=variant.cycles * _ACROSS)


def _moves(function: relax.Function) -> bool:
    """Whether a transpose is part of the group."""
    return any(op_of(binding.value) == "transpose" for binding in bindings(function))


def group_names(mod: tvm.IRModule) -> list[str]:
    """Names of the group functions in the order in which ``main`` calls them."""
    names = []
    for binding in bindings(mod["main"]):
        value = binding.value
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            names.append(str(value.op.name_hint))
    return names


def _kernels(
    mod: tvm.IRModule,
    function: relax.Function,
    choices: tuple[AnyVariant, ...],
    anchor_call: Any,
    cache: _Cache,
) -> tuple[tuple[PrimFunc, ...], str]:
    """Fused kernels of one group, and its hash; groups with equal content share one result."""
    content = _content(mod, function)
    digest = tvm_ffi.structural_hash(content)
    key = f"{digest % 2**64:016x}"
    bucket = cache.setdefault(digest, [])
    for known, kernels in bucket:
        if tvm_ffi.structural_equal(known, content):
            return kernels, key
    if choices:
        kernels = tuple(_fused(mod, function, anchor_call, v) for v in choices)
    else:
        kernels = (_fused(mod, function, None, None),)
    bucket.append((content, kernels))
    return kernels, key


def _content(mod: tvm.IRModule, function: relax.Function) -> tvm.IRModule:
    """The group alone under neutral names, so that equal groups are structurally equal."""
    return _alone(mod, function, None, None)


def _anchor_of(mod: tvm.IRModule, function: relax.Function) -> tuple[Any, str]:
    """The group's anchor and its record; a group of several has no variants of any of them."""
    found = []
    for binding in bindings(function):
        callee = mod[binding.value.args[0]]
        if callee.attrs and ATTR in callee.attrs:
            found.append((binding, str(callee.attrs[ATTR])))
    return found[0] if len(found) == 1 else (None, "")


def _weight_index(function: relax.Function, anchor: Any) -> int:
    weight = anchor.value.args[1].fields[1]
    for i, parameter in enumerate(function.params):
        if parameter.same_as(weight):
            return i
    raise BuildError(f"the weight of {anchor.value.args[0].name_hint} is made inside its group")


def _alone(
    mod: tvm.IRModule, function: relax.Function, anchor: Any, variant: AnyVariant | None
) -> tvm.IRModule:
    """Module of ``main`` calling just this group, with the variant's kernel swapped in."""
    builder = relax.BlockBuilder()
    fresh: dict[Any, Any] = {}
    parameters = []
    for i, parameter in enumerate(function.params):
        ty = parameter.ty
        if isinstance(variant, Variant) and i == _weight_index(function, anchor):
            ty = relax.TensorType(variant.weight_shape, variant.weight_dtype)
        fresh[parameter] = relax.Var(f"p{i}", ty)
        parameters.append(fresh[parameter])
    lines = []
    for k, binding in enumerate(bindings(function)):
        call = binding.value
        swap = variant is not None and binding.var.same_as(anchor.var)
        callee = variant.prim_func() if swap and variant else mod[call.args[0]]
        gv = builder.add_func(callee.without_attr("global_symbol"), f"k{k}")
        arguments = relax.Tuple([fresh.get(a, a) for a in call.args[1].fields])
        fresh[binding.var] = relax.DataflowVar(f"b{k}", binding.var.ty)
        lines.append((binding.var, relax.Call(call.op, [gv, arguments], call.attrs, call.ty_args)))
    *inner, (last_var, last_call) = lines
    result = relax.Var("out", last_var.ty)
    block = relax.DataflowBlock(
        [*(relax.VarBinding(fresh[v], c) for v, c in inner), relax.VarBinding(result, last_call)]
    )
    group = relax.Function(parameters, relax.SeqExpr([block], result), last_var.ty, is_pure=True)
    group_gv = builder.add_func(group.with_attr("Primitive", True), PREFIX)
    outer = [relax.Var(f"a{i}", p.ty) for i, p in enumerate(parameters)]
    with builder.function("main", outer):
        with builder.dataflow():
            out = builder.emit_output(relax.Call(group_gv, outer))
        builder.emit_func_output(out)
    return builder.finalize()


def _fused(
    mod: tvm.IRModule, function: relax.Function, anchor: Any, variant: AnyVariant | None
) -> PrimFunc:
    """Merge one group into one PrimFunc."""
    merged = relax.transform.FuseTIR()(_alone(mod, function, anchor, variant))
    calls = [b.value for b in bindings(merged["main"])]
    if len(calls) != 1:
        count = len(bindings(function))
        raise BuildError(f"a group of {count} operators left {len(calls)} kernels")
    kernel = merged[calls[0].args[0]]
    for attr in (ATTR, "op_pattern"):
        kernel = kernel.without_attr(attr)
    if isinstance(variant, WrittenVariant):  # TVM's analysis does not know all that they hold
        kernel = kernel.with_attr("estimated_flops", int(variant.anchor.flops))
    return _neutral_names(kernel.with_attr("global_symbol", "main"))


def _neutral_names(kernel: PrimFunc) -> PrimFunc:
    """Number the names that TOPI derives from variables of ``main``.

    A record finds its blocks by name: ``v86_red`` would only be found as long as no operator in
    front of it comes or goes.
    """
    text = tvm.ir.save_json(kernel)
    names = dict.fromkeys(_FROM_VARIABLE.findall(text))
    if not names:
        return kernel
    numbers = {name: f'"t{i}_' for i, name in enumerate(names)}
    return tvm.ir.load_json(_FROM_VARIABLE.sub(lambda m: numbers[m.group()], text))


def kernel_name(group: str) -> str:
    """Name of a group's kernel in the library; equal kernels have that of the first group."""
    return "kernel_" + group


def specialize(
    mod: tvm.IRModule,
    groups: list[GroupKernel],
    choose: Callable[[GroupKernel], tuple[int, PrimFunc]],
) -> tvm.IRModule:
    """Replace every group by its scheduled kernel and pack the weights of its variant.

    Parameters
    ----------
    choose
        Gives for a group the index of the variant and the scheduled kernel.

    Returns
    -------
    tvm.IRModule
        ``main`` with one ``call_tir`` a group over shared kernels.
    """
    by_name = {g.name: g for g in groups}
    builder = relax.BlockBuilder(_without_groups(mod, by_name))
    main = mod["main"]
    remap = {p: relax.Var(p.name, p.ty) for p in main.params}
    packed: dict[tuple[int, str], Any] = {}
    keep: list[Any] = []  # constants whose identity is a key must stay alive

    def group_call(group: GroupKernel, call: relax.Call) -> relax.Expr:
        index, kernel = choose(group)
        arguments = list(call.args)
        if group.weight >= 0:
            weight = arguments[group.weight]
            variant = group.variants[index]
            assert isinstance(variant, Variant)
            key = (hash(weight), variant.name + str(variant.weight_shape))
            if key not in packed:
                logical = array_of(weight)
                if logical is None:
                    raise BuildError(f"the weight of {group.name} is not a constant")
                packed[key] = constant(variant.pack(logical))
                keep.append(weight)
            arguments[group.weight] = packed[key]
        gv = builder.add_func(kernel.without_attr("global_symbol"), kernel_name(group.name))
        return relax.call_tir(gv, [with_variables(a, remap) for a in arguments], out_ty=call.ty)

    with builder.function("main", list(remap.values())):
        with builder.dataflow():
            for binding in bindings(main):
                value = binding.value
                group = by_name.get(str(getattr(getattr(value, "op", None), "name_hint", "")))
                new = with_variables(value, remap) if group is None else group_call(group, value)
                remap[binding.var] = builder.emit(new, binding.var.name)
            outputs = builder.emit_output(with_variables(main.body.body, remap))
        builder.emit_func_output(outputs)
    return relax.transform.DeadCodeElimination(["main"])(builder.finalize())


def _without_groups(mod: tvm.IRModule, groups: dict[str, GroupKernel]) -> tvm.IRModule:
    kept = {
        gv: f
        for gv, f in mod.functions_items()
        if gv.name_hint != "main" and gv.name_hint not in groups
    }
    return tvm.IRModule(kept)
