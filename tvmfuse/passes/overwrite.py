"""Let a kernel write its result over an operand that nobody reads any more.

Before: ``y = k(x, w, s)``, with a schedule that reads ``s[i]`` only where it writes ``y[i]``
After:  ``y = k_over_2(x, w, s)``, in the memory of ``s``

It is done behind scheduling: a schedule, and with it a tuning record, does not depend on it, and
only the schedule shows whether every element is read and written in one place. A kernel that reads
or writes in any other way keeps memory of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import IntImm, PrimFunc

from tvmfuse.errors import BuildError
from tvmfuse.passes.relax_tools import count_uses, ints, mentions, with_variables
from tvmfuse.passes.relocate import READS, in_buffer, reads_of
from tvmfuse.passes.rewriter import MainRewriter

OVERWRITES = "tvmfuse.overwrites"  # on a kernel that reads its last parameter before it writes it
_CALL = "relax.call_tir"
_DATA_PARALLEL = 0  # IterVar.iter_type


def overwrite(mod: tvm.IRModule, pairs: Iterable[Any]) -> tvm.IRModule:
    """Give results the memory of operands.

    Parameters
    ----------
    mod
        ``main`` is a chain of ``call_tir`` of scheduled kernels.
    pairs
        :class:`tvmfuse.fusion.group.Overwritten` for each group that may.

    Raises
    ------
    BuildError
        The operand is read later: the planner should have refused.
    """
    wanted = {pair.name: pair.operand for pair in pairs}
    return _Rewriter(mod, wanted).run() if wanted else mod


class _Rewriter(MainRewriter):
    """Gives fewer results memory of their own."""

    def __init__(self, mod: tvm.IRModule, wanted: dict[str, str]) -> None:
        super().__init__(mod)
        self.wanted = wanted
        self.made: dict[tuple[str, int], Any] = {}
        self.left = count_uses(self.main)
        self.base: dict[relax.Var, relax.Var] = {}  # of a view

    def write(self, binding: Any) -> None:
        """See :class:`MainRewriter`."""
        self._count(binding)
        over = self._over(binding)
        value = with_variables(binding.value if over is None else over, self.remap)
        self.remap[binding.var] = self.builder.emit(value, str(binding.var.name))

    def _count(self, binding: Any) -> None:
        """Take the reads of one binding off those that are still to come; remember views."""
        kernel = str(getattr(getattr(binding.value, "op", None), "name", "")) == _CALL

        def visit(expr: Any) -> None:
            if isinstance(expr, relax.Var):
                self.left[expr] -= 1
                if not kernel:
                    self.base[binding.var] = self.base.get(expr, expr)

        relax.analysis.post_order_visit(binding.value, visit)

    def _is_read_later(self, variable: relax.Var) -> bool:
        views = (view for view, base in self.base.items() if base.same_as(variable))
        return any(self.left.get(v, 0) for v in (variable, *views))

    def _over(self, binding: Any) -> Any:
        """The call that writes over an operand; None where that is not wanted or not possible."""
        operand, call = self.wanted.get(str(binding.var.name)), binding.value
        if operand is None or str(getattr(call.op, "name", "")) != _CALL:
            return None
        arguments = list(call.args[1].fields)
        places = [
            n for n, a in enumerate(arguments) if isinstance(a, relax.Var) and a.name == operand
        ]
        if len(places) != 1:
            return None
        (place,) = places
        if self._is_read_later(arguments[place]):
            raise BuildError(f"{operand} is read behind {binding.var.name}, which overwrites it")
        kernel = self._kernel(call.args[0], place)
        if kernel is None:
            return None
        given = [*arguments[:place], *arguments[place + 1 :], arguments[place]]
        return relax.op.call_tir_inplace(kernel, given, [len(given) - 1], call.ty)

    def _kernel(self, gv: Any, place: int) -> Any:
        key = (str(gv.name_hint), place)
        if key not in self.made:
            over = written_over(self.mod[gv], place)
            name = f"{gv.name_hint}_over_{place}"
            self.made[key] = (
                None
                if over is None
                else self.builder.add_func(over.without_attr("global_symbol"), name)
            )
        return self.made[key]


def written_over(kernel: PrimFunc, place: int) -> PrimFunc | None:
    """The kernel with its result in the memory of a parameter, which becomes the last one.

    Parameters
    ----------
    kernel
        Scheduled; its last parameter is its result.
    place
        Of the parameter.

    Returns
    -------
    PrimFunc or None
        None unless one block alone reads the parameter and writes the result, at the same place,
        and runs once for each element.
    """
    *given, result = kernel.params
    operand = given[place]
    if not _alike(operand, result) or not _in_one_place(kernel.body, operand, result):
        return None

    body = in_buffer(kernel.body, operand, result)
    if body is None:
        return None
    rest = [*given[:place], *given[place + 1 :]]
    over = PrimFunc([*rest, result], body, kernel.ret_type, attrs=kernel.attrs)
    if READS in (kernel.attrs or {}):
        known = reads_of(kernel)
        over = over.with_attr(READS, [*known[:place], *known[place + 1 :]])
    return over.with_attr(OVERWRITES, True)


def _alike(one: Any, other: Any) -> bool:
    return ints(one.ty.shape) == ints(other.ty.shape) and one.ty.dtype == other.ty.dtype


def _in_one_place(body: Any, operand: Any, result: Any) -> bool:
    """Whether one statement reads the operand and writes the result, once for each element."""
    found = None
    for statement, trips, block in _leaves(body, 1, None):
        if not mentions(statement, operand) and not mentions(statement, result):
            continue
        if found is not None or trips is None or block is None:
            return False
        found = statement, trips, block
    if found is None:
        return False
    store, trips, block = found
    if not isinstance(store, tirx.BufferStore) or not store.buffer.same_as(result):
        return False
    if trips != math.prod(ints(result.ty.shape)):
        return False
    if any(int(axis.iter_type) != _DATA_PARALLEL for axis in block.iter_vars):
        return False
    return not mentions(store.value, result) and all(
        _same_place(indices, store.indices, result) for indices in _loads(store.value, operand)
    )


def _leaves(statement: Any, trips: int | None, block: Any) -> Iterator[tuple[Any, int | None, Any]]:
    """Statements without others in them, how often each runs, and the block around it.

    ``trips`` is None where that depends on something, and then the whole statement is one leaf.
    """
    if isinstance(statement, tirx.SeqStmt):
        for part in statement.seq:
            yield from _leaves(part, trips, block)
    elif isinstance(statement, tirx.For) and isinstance(statement.extent, IntImm):
        count = None if trips is None else trips * int(statement.extent)
        yield from _leaves(statement.body, count, block)
    elif isinstance(statement, SBlockRealize):
        always = isinstance(statement.predicate, IntImm) and bool(int(statement.predicate))
        yield from _leaves(statement.block, trips if always else None, block)
    elif isinstance(statement, SBlock):
        if statement.init is not None:
            yield statement.init, None, statement
        yield from _leaves(statement.body, trips, statement)
    elif isinstance(statement, tirx.AttrStmt):
        yield from _leaves(statement.body, trips, block)
    elif isinstance(statement, tirx.BufferStore):
        yield statement, trips, block
    else:
        yield statement, None, block


def _same_place(one: Any, other: Any, tensor: Any) -> bool:
    """Whether indices are the same; along an axis of one element they always are."""
    extents = ints(tensor.ty.shape)
    return all(
        extent == 1 or tvm_ffi.structural_equal(i, j)
        for i, j, extent in zip(one, other, extents, strict=True)
    )


def _loads(value: Any, tensor: Any) -> list[list[Any]]:
    found: list[list[Any]] = []

    def see(node: Any) -> None:
        if node.source.same_as(tensor):
            found.append(list(node.indices))

    tvm_ffi.structural_walk(value, [(TensorLoad, see)])
    return found
