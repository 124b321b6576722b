"""The parts of a group: what its operators are as kernels of their own, and how they connect."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax

from tvmfuse.errors import BuildError
from tvmfuse.hardware import Hardware
from tvmfuse.passes.relax_tools import bindings, dtype_of, shape_of
from tvmfuse.passes.specialize import GroupKernel, group_kernel
from tvmfuse.schedules.anchor import ATTR


@dataclass(frozen=True)
class Part:
    """One operator of a group.

    Parameters
    ----------
    kernel
        Its kernels, one a variant.
    operands
        Where its inputs are from: an argument of the group, or ``~n`` for the result of part n.
    shape, dtype
        Of its result.
    anchor
        Its record, as text; empty for an operator that is no anchor.
    """

    kernel: GroupKernel
    operands: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    anchor: str = ""


def parts_of(mod: tvm.IRModule, group: str, hardware: Hardware) -> list[Part]:
    """Take a group of a fused module apart, in the order in which its operators are computed.

    Raises
    ------
    BuildError
        An operator reads what is neither an argument of the group nor a result inside it, or has
        a result of unknown shape.
    """
    function = mod[group]
    source = {parameter: place for place, parameter in enumerate(function.params)}
    found = []
    for number, binding in enumerate(bindings(function)):
        call, shape = binding.value, shape_of(binding.var)
        reads = list(call.args[1].fields)
        if shape is None or any(read not in source for read in reads):
            raise BuildError(f"{binding.var.name} of {group} cannot be a kernel of its own")
        alone = _single(call, reads, binding.var)
        attrs = mod[call.args[0]].attrs
        anchor = str(attrs[ATTR]) if attrs and ATTR in attrs else ""
        kernel = group_kernel(mod, alone, f"{group}_part_{number}", hardware)
        operands = tuple(source[read] for read in dict.fromkeys(reads))
        found.append(Part(kernel, operands, tuple(shape), dtype_of(binding.var), anchor))
        source[binding.var] = ~number
    return found


def _single(call: relax.Call, reads: list[relax.Var], result: relax.Var) -> relax.Function:
    """A group's function with just this operator."""
    fresh = {read: relax.Var(f"p{i}", read.ty) for i, read in enumerate(dict.fromkeys(reads))}
    arguments = relax.Tuple([fresh[read] for read in reads])
    value = relax.Call(call.op, [call.args[0], arguments], call.attrs, call.ty_args)
    out = relax.Var(str(result.name), result.ty)
    body = relax.SeqExpr([relax.DataflowBlock([relax.VarBinding(out, value)])], out)
    function = relax.Function(list(fresh.values()), body, result.ty, is_pure=True)
    return function.with_attr("Primitive", True)
