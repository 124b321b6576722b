"""What one inference of a compiled program launches, moves and allocates; read from the program."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GlobalVar
from tvm.tirx import IntImm

from tvmfuse.errors import BuildError
from tvmfuse.passes.overwrite import OVERWRITES
from tvmfuse.passes.plan_memory import ZERO_OFFSET
from tvmfuse.passes.relax_tools import bindings, dtype_of, ints, item_bytes, op_name, shape_of
from tvmfuse.passes.relocate import READS, reads_of


@dataclass(frozen=True)
class Footprint:
    """One inference of a compiled program.

    Parameters
    ----------
    kernels
        Kernel calls.
    written_bytes
        Of tensors that a kernel writes and the model does not return.
    read_bytes
        What kernels read of tensors that other kernels wrote, each as often as it is read.
    memory_bytes
        All storage of the static memory plan: intermediates and results, no weights, no inputs.
        Scratch memory inside a kernel is not part of the plan.
    """

    kernels: int
    written_bytes: int
    read_bytes: int
    memory_bytes: int

    @property
    def moved_bytes(self) -> int:
        """Bytes of intermediate tensors, written and read."""
        return self.written_bytes + self.read_bytes

    def to_json(self) -> dict[str, int]:
        """Plain data."""
        return asdict(self)


def footprint(mod: tvm.IRModule) -> Footprint:
    """Read ``main`` in the form of the virtual machine, its memory planned.

    Raises
    ------
    BuildError
        A size is not known before the program runs.
    """
    walk = _Walk(mod)
    main = mod["main"]
    for binding in bindings(main):
        walk.see(binding.var, binding.value)
    body = main.body.body
    returned = {walk.base(leaf) for leaf in walk.leaves(body)}
    kept = walk.written - returned
    written = sum(size for tensor, size in walk.tensors.items() if tensor in kept)
    written += walk.again_bytes
    return Footprint(walk.kernels, written, walk.read_bytes, walk.memory_bytes)


class _Walk:
    """Follows the tensors of one program from their allocation through views to the kernels."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._reads = {
            gv: reads_of(f) for gv, f in mod.functions_items() if READS in (f.attrs or {})
        }
        self._overwrite = {gv for gv, f in mod.functions_items() if OVERWRITES in (f.attrs or {})}
        self.kernels = self.read_bytes = self.memory_bytes = self.again_bytes = 0
        self.tensors: dict[relax.Var, int] = {}  # allocated ones: bytes
        self.written: set[relax.Var] = set()
        self._base: dict[relax.Var, relax.Var] = {}
        self._tuples: dict[relax.Var, relax.Tuple] = {}

    def base(self, variable: relax.Var) -> relax.Var:
        """The tensor that a view is a view of."""
        return self._base.get(variable, variable)

    def leaves(self, expr: Any) -> list[relax.Var]:
        """The variables in a result, through tuples."""
        if isinstance(expr, relax.Tuple):
            return [leaf for f in expr.fields for leaf in self.leaves(f)]
        if not isinstance(expr, relax.Var):
            return []
        inner = self._tuples.get(expr)
        return self.leaves(inner) if inner is not None else [expr]

    def see(self, variable: relax.Var, value: Any) -> None:
        """Take one binding in."""
        if isinstance(value, relax.Var):
            self._base[variable] = self.base(value)
            if value in self._tuples:
                self._tuples[variable] = self._tuples[value]
        elif isinstance(value, relax.Tuple):
            self._tuples[variable] = value
        elif isinstance(value, relax.TupleGetItem):
            whole = self._tuples.get(value.tuple_value)
            if whole is not None:
                self.see(variable, whole.fields[value.index])
        elif isinstance(value, relax.Call):
            self._call(variable, value)

    def _call(self, variable: relax.Var, call: relax.Call) -> None:
        op = op_name(call)
        if op == "relax.vm.alloc_storage":
            self.memory_bytes += math.prod(_extents(call.args[0], variable))
        elif op == "relax.vm.alloc_tensor":
            items = math.prod(_extents(call.args[2], variable))
            self.tensors[variable] = items * item_bytes(dtype_of(variable))
        elif isinstance(call.op, relax.ExternFunc):
            self._packed(variable, str(call.op.global_symbol), call.args)
        elif isinstance(call.op, GlobalVar):
            self._launch(call.args, self._reads.get(call.op))
            if call.op in self._overwrite:
                self.read_bytes += _bytes_of(call.args[-1])
                self.again_bytes += _bytes_of(call.args[-1])

    def _packed(self, variable: relax.Var, function: str, arguments: Any) -> None:
        if function in ("vm.builtin.reshape", ZERO_OFFSET):
            self._base[variable] = self.base(arguments[0])
        elif not function.startswith("vm.builtin."):
            self._launch(arguments)

    def _launch(self, arguments: Any, reads: list[int] | None = None) -> None:
        """A kernel's last tensor is its result, as are those that nobody has written yet."""
        self.kernels += 1
        given = [a for a in arguments if isinstance(a, relax.Var)]
        for place, argument in enumerate(given):
            tensor = self.base(argument)
            if tensor not in self.tensors:
                continue
            if place == len(given) - 1 or tensor not in self.written:
                self.written.add(tensor)
            elif reads is None or reads[place] < 0:
                self.read_bytes += _bytes_of(argument)
            else:
                self.read_bytes += reads[place] * item_bytes(dtype_of(argument))


def _extents(shape: Any, of: relax.Var) -> list[int]:
    if not all(isinstance(value, (int, IntImm)) for value in shape.values):
        raise BuildError(f"the size of {of.name} is only known when it runs")
    return list(ints(shape.values))


def _bytes_of(expr: Any) -> int:
    shape = shape_of(expr)
    if shape is None:
        raise BuildError(f"the size of {expr.name} is only known when it runs")
    return math.prod(shape) * item_bytes(dtype_of(expr))
