"""Take long sums and means in two steps, so that they keep their digits.

Before: ``mean(x, [H, W])`` of 112x112 channels-last pixels: 12,544 terms in one accumulator
After:  ``sum(sum(x, [W]), [H]) * (1 / 12544)``: 112 terms twice

A sum along the innermost axes has an accumulator for each lane of a vector, so it is split later
than one whose vectors run along another axis (`tvmfuse.precision.accumulation` has the bounds).
The first step also has more rows to share out among the cores than the sum itself.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmfuse.passes.relax_tools import dtype_of, ints, op_name, shape_of
from tvmfuse.precision.accumulation import LANES, even_split, needs_blocks

_TYPES = ("float32", "float64")


@mutator
class _Splitter(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if op_name(call) not in ("relax.sum", "relax.mean"):
            return call
        shape, result, dtype = shape_of(call.args[0]), shape_of(call), dtype_of(call)
        if shape is None or result is None or 0 in shape or dtype not in _TYPES:
            return call
        reduced = _reduced(call, len(shape))
        wide = [d for d in reduced if shape[d] > 1]
        count = math.prod(shape[d] for d in wide)
        if not needs_blocks(count, dtype, LANES if _along_rows(shape, wide) else 1):
            return call
        if len(wide) == 1 and even_split(count)[0] == 1:
            return call  # a prime number of terms
        total = self._in_two_steps(call.args[0], shape, reduced, wide)
        total = self.builder_.normalize(relax.op.reshape(total, result))
        if op_name(call) == "relax.sum":
            return total
        return relax.op.multiply(total, relax.const(1.0 / count, dtype))

    def _in_two_steps(
        self, x: relax.Expr, shape: tuple[int, ...], reduced: list[int], wide: list[int]
    ) -> relax.Expr:
        """Blocks along the innermost axis first; one axis alone is cut into equal blocks."""
        if len(wide) > 1:
            blocks = self.builder_.emit(relax.op.sum(x, axis=[wide[-1]], keepdims=True))
            return self.builder_.normalize(relax.op.sum(blocks, axis=reduced, keepdims=True))
        axis = wide[0]
        outer, inner = even_split(shape[axis])
        view = (*shape[:axis], outer, inner, *shape[axis + 1 :])
        cut = self.builder_.emit(relax.op.reshape(x, view))
        blocks = self.builder_.emit(relax.op.sum(cut, axis=[axis + 1]))
        return self.builder_.normalize(relax.op.sum(blocks, axis=[axis]))


def _reduced(call: relax.Call, rank: int) -> list[int]:
    axis = call.attrs.axis
    return list(range(rank)) if axis is None else sorted(a % rank for a in ints(axis))


def _along_rows(shape: tuple[int, ...], wide: list[int]) -> bool:
    """Whether the summed axes are the innermost ones, apart from axes of one element."""
    return bool(wide) and math.prod(shape[wide[0] :]) == math.prod(shape[d] for d in wide)


@tvm.transform.module_pass(opt_level=0, name="SplitSums")
class SplitSums:
    """Placement: behind the merging rules, before operators become kernels."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        mod["main"] = _Splitter(mod).visit_expr(mod["main"])
        return mod
