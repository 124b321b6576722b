"""Cut a view in front of an element-wise operator instead of behind it.

Every slice then computes its own elements in the kernel that wants them, and the whole is not
stored. It is done where the slices share no element, so that nothing is computed twice, and only
behind a view or a transpose: behind a kernel the operator joins that.

Before: ``s = sigmoid(reshape(x)); f(s[:2]); g(s[2:])``
After:  ``f(sigmoid(reshape(x)[:2])); g(sigmoid(reshape(x)[2:]))``
"""

from __future__ import annotations

import itertools
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmfuse.passes.cancel_transposes import UNARY
from tvmfuse.passes.relax_tools import bindings, count_uses, ints, op_name, shape_of

_MOVES = ("relax.reshape", "relax.permute_dims")
_SLICE = "relax.strided_slice"


@mutator
class _Hoister(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._cut = _cut_apart(mod["main"])

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        inner = self._cut.get(call.args[0]) if op_name(call) == _SLICE else None
        call = self.visit_expr_post_order(call)
        if inner is None:
            return call
        source = self.visit_expr(inner.args[0])
        bounds = [ints(c.fields) for c in call.args[1:]]
        thin = self.builder_.emit(relax.op.strided_slice(source, *bounds))
        return relax.Call(inner.op, [thin, *inner.args[1:]], inner.attrs, inner.ty_args)


def _cut_apart(main: relax.Function) -> dict[relax.Var, relax.Call]:
    """Element-wise values behind a view of which only slices are read that share nothing."""
    values = {b.var: b.value for b in bindings(main)}
    slices: dict[relax.Var, list[tuple[int, int, int]]] = {}
    for value in values.values():
        region = _region(value) if op_name(value) == _SLICE else None
        if region is not None:
            slices.setdefault(value.args[0], []).append(region)
    uses = count_uses(main)
    found = {}
    for variable, regions in slices.items():
        value = values.get(variable)
        behind = (
            values.get(value.args[0]) if value is not None and op_name(value) in UNARY else None
        )
        if op_name(behind) not in _MOVES or uses[variable] > len(regions):
            continue
        if len({axis for axis, _, _ in regions}) == 1 and _are_apart(regions):
            found[variable] = value
    return found


def _region(call: relax.Call) -> tuple[int, int, int] | None:
    """Axis, begin and end of a slice of one axis without a step."""
    shape = shape_of(call.args[0])
    axes, begin, end, *step = (ints(a.fields) for a in call.args[1:])
    if shape is None or len(axes) != 1 or (step and step[0] != (1,)):
        return None
    start, stop, _ = slice(begin[0], end[0]).indices(shape[axes[0]])
    return axes[0] % len(shape), start, stop


def _are_apart(regions: list[tuple[int, int, int]]) -> bool:
    ordered = sorted(regions)
    return all(one[2] <= other[1] for one, other in itertools.pairwise(ordered))


@tvm.transform.module_pass(opt_level=0, name="HoistSlices")
class HoistSlices:
    """Placement: graph level, behind the passes that move transposes, before reshapes sink."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        hoister = _Hoister(mod)
        mod["main"] = hoister.visit_expr(mod["main"])
        return mod
