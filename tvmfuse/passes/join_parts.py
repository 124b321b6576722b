"""Make one kernel of those that write parts of one concatenation one behind the other.

Before: ``t = k1_at_0(x); c = k2_at_2(x, t)``
After:  ``c = k1_with_1(x)``, whose body is the one of ``k1_at_0`` and then the one of ``k2_at_2``

It is done behind scheduling: each part keeps its own loops, and with them its tuning record.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import PrimFunc

from tvmfuse.errors import BuildError
from tvmfuse.passes.relax_tools import bindings, op_name, with_variables
from tvmfuse.passes.relocate import READS, in_buffer, reads_of
from tvmfuse.passes.rewriter import MainRewriter

_CALLS = ("relax.call_tir", "relax.call_tir_inplace")


def join_parts(mod: tvm.IRModule, runs: Iterable[Any]) -> tvm.IRModule:
    """Join kernels.

    Parameters
    ----------
    mod
        ``main`` is a chain of ``call_tir`` of scheduled kernels; parts are written in place.
    runs
        :class:`tvmfuse.fusion.group.Beside` for each kernel to make.
    """
    runs = tuple(runs)
    return _Joiner(mod, runs).run() if runs else mod


class _Joiner(MainRewriter):
    """Makes one kernel of several."""

    def __init__(self, mod: tvm.IRModule, runs: Sequence[Any]) -> None:
        super().__init__(mod)
        self.next_of = {
            one: other for run in runs for one, other in zip(run.parts, run.parts[1:], strict=False)
        }
        self.follower = {one.var: other for one, other in itertools.pairwise(bindings(self.main))}
        self.waiting: Any = None  # the call of the parts so far, and their variable
        self.made: dict[Any, Any] = {}

    def write(self, binding: Any) -> None:
        """See :class:`MainRewriter`."""
        value = with_variables(binding.value, self.remap)
        if self.waiting is not None:
            call, whole = self.waiting
            value = self._joined(call, whole, value)
            self.waiting = None
        if self._goes_on(binding, self.follower.get(binding.var)):
            self.waiting = (value, relax.Var(str(binding.var.name), binding.var.ty))
            self.remap[binding.var] = self.waiting[1]
        else:
            self.remap[binding.var] = self.builder.emit(value, str(binding.var.name))

    def _goes_on(self, binding: Any, follower: Any) -> bool:
        """Whether the next binding writes another part of the same tensor, in the same kernel."""
        if follower is None or op_name(follower.value) != _CALLS[1]:
            return False
        part = str(binding.var.name).removesuffix("__part")
        target = follower.value.args[1].fields[-1]
        return (
            part in self.next_of
            and op_name(binding.value) in _CALLS
            and isinstance(target, relax.Var)
            and target.same_as(binding.var)
        )

    def _joined(self, first: relax.Call, whole: relax.Var, second: relax.Call) -> relax.Call:
        """One call for both; ``second`` writes into ``whole``, the result of ``first``."""
        inplace = op_name(first) == _CALLS[1]
        mine, its = list(first.args[1].fields), list(second.args[1].fields)[:-1]
        before = mine.pop() if inplace else None
        known = {_key(a): n for n, a in enumerate(mine)}
        places = []
        for argument in its:
            if isinstance(argument, relax.Var) and argument.same_as(whole):
                # An earlier part, read where it lies: it was there before ``first`` as well.
                if before is None:
                    raise BuildError(f"{whole.name} is read before any part of it is written")
                argument = before
            places.append(known.setdefault(_key(argument), len(mine)))
            if places[-1] == len(mine):
                mine.append(argument)
        gv = self._kernel(first.args[0], second.args[0], tuple(places), len(mine))
        if before is None:
            return relax.call_tir(gv, mine, out_ty=whole.ty)
        return relax.op.call_tir_inplace(gv, [*mine, before], [len(mine)], whole.ty)

    def _kernel(self, first: Any, second: Any, places: tuple[int, ...], count: int) -> Any:
        key = (str(first.name_hint), str(second.name_hint), places)
        if key not in self.made:
            mod = self.builder.get()
            both = one_behind_the_other(mod[first], mod[second], places, count)
            name = f"{first.name_hint}_and"
            self.made[key] = self.builder.add_func(both.without_attr("global_symbol"), name)
        return self.made[key]


def _key(argument: Any) -> Any:
    return str(argument.name) if isinstance(argument, relax.Var) else id(argument)


def one_behind_the_other(
    first: PrimFunc, second: PrimFunc, places: Sequence[int], count: int
) -> PrimFunc:
    """A kernel that runs two, which have the same result.

    Parameters
    ----------
    first, second
        Scheduled; their last parameter is the result.
    places
        For each operand of ``second``, which operand of the joint kernel it is; the first ones
        are those of ``first``.
    count
        Operands of the joint kernel.
    """
    *operands, result = first.params
    second = pickle.loads(pickle.dumps(second))  # two relocations of one kernel share its buffers
    known = reads_of(first)[:-1]
    for n, place in enumerate(places):
        if place == len(operands):
            operands.append(second.params[n])
            known.append(reads_of(second)[n])
        elif known[place] != reads_of(second)[n]:
            known[place] = -1
        second = _renamed(second, n, operands[place])
    second = _renamed(second, len(places), result)
    assert len(operands) == count
    roots = [first.body.block, second.body.block]
    root = SBlock(
        [], [], [], "root", tirx.SeqStmt([r.body for r in roots]),
        alloc_buffers=[b for r in roots for b in r.alloc_buffers],
    )  # fmt: skip
    body = SBlockRealize([], tirx.const(True, "bool"), root)
    both = PrimFunc([*operands, result], body, first.ret_type, attrs=first.attrs)
    return both.with_attr(READS, [*known, -1]) if any(k >= 0 for k in known) else both


def _renamed(kernel: PrimFunc, place: int, buffer: Any) -> PrimFunc:
    """The kernel with another parameter of the same shape in place of one of its own."""
    old = kernel.params[place]
    if old.same_as(buffer):
        return kernel
    body = in_buffer(kernel.body, old, buffer)
    if body is None:
        raise BuildError(f"a kernel takes the address of {old.name}: it cannot be joined")
    params = [buffer if n == place else p for n, p in enumerate(kernel.params)]
    return PrimFunc(params, body, kernel.ret_type, attrs=kernel.attrs)
