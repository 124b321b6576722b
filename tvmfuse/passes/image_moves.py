"""Say a transpose beside a convolution as what it is there: an image's channels come first.

`canonical_moves` has dropped the axis of a batch of one, with a reshape in front and one behind,
and a group ends at a reshape. Where a convolution can write channels first itself
(`tvmfuse.schedules.cpu.winograd_rows`), or read a picture so (`by_planes` in
`tvmfuse.schedules.cpu.contraction`), the transpose gets its four axes back and can join it.

Before: ``reshape(permute_dims(reshape(relu(conv2d(x, w)), (H, W, C)), (2, 0, 1)), (1, C, H, W))``
After:  ``permute_dims(relu(conv2d(x, w)), (0, 3, 1, 2))``
Before: ``conv2d(reshape(permute_dims(reshape(x, (3, H, W)), (1, 2, 0)), (1, H, W, 3)), w)``
After:  ``conv2d(permute_dims(x, (0, 2, 3, 1)), w)``
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmfuse.passes.cancel_transposes import BINARY, UNARY
from tvmfuse.passes.lower_anchors import conv2d_anchor
from tvmfuse.passes.relax_tools import ints, op_name, shape_of, value_behind
from tvmfuse.schedules.cpu.contraction import by_planes
from tvmfuse.schedules.cpu.winograd_rows import by_rows

TO_FIRST = (0, 3, 1, 2)
TO_LAST = (0, 2, 3, 1)
_FAR = 8  # element-wise operators between a convolution and the transpose of its result


@mutator
class _Images(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if op_name(call) == "relax.reshape":
            image = self._moved(call, TO_FIRST)
            if image is not None and self._comes_from_rows(image):
                return relax.op.permute_dims(image, TO_FIRST)
        if op_name(call) == "relax.nn.conv2d":
            return self._picture(call)
        return call

    def _picture(self, call: relax.Call) -> relax.Call:
        """The convolution, reading a picture's planes by a transpose of four axes."""
        read = self._value(call.args[0])
        image = self._moved(read, TO_LAST) if op_name(read) == "relax.reshape" else None
        conv = None if image is None else conv2d_anchor(self.builder_.normalize(call))
        if conv is None or not by_planes(conv):
            return call
        moved = self.builder_.emit(relax.op.permute_dims(image, TO_LAST))
        return relax.Call(call.op, [moved, *call.args[1:]], call.attrs, call.ty_args)

    def _value(self, expr: relax.Expr) -> Any:
        return value_behind(expr, self.lookup_binding)

    def _by_rows(self, call: relax.Call) -> bool:
        conv = conv2d_anchor(self.builder_.normalize(call))
        return conv is not None and by_rows(conv)

    def _moved(self, outer: relax.Call, axes: tuple[int, ...]) -> Any:
        """The image that a reshape gives with its axes moved so; None when it does not."""
        permute = self._value(outer.args[0])
        if op_name(permute) != "relax.permute_dims" or permute.attrs.axes is None:
            return None
        inner = self._value(permute.args[0])
        if op_name(inner) != "relax.reshape":
            return None
        image = inner.args[0]
        shape, thin = shape_of(image), shape_of(permute.args[0])
        if shape is None or len(shape) != 4 or shape[0] != 1 or thin != shape[1:]:
            return None
        if tuple(a + 1 for a in ints(permute.attrs.axes)) != axes[1:]:
            return None
        return image if shape_of(outer) == tuple(shape[a] for a in axes) else None

    def _comes_from_rows(self, image: relax.Expr) -> bool:
        """Whether element-wise operators alone lie between it and such a convolution."""
        for _ in range(_FAR):
            value = self._value(image)
            name = op_name(value)
            if name == "relax.nn.conv2d":
                return self._by_rows(value)
            if name not in UNARY | BINARY:
                return False
            image = value.args[0]
        return False


@tvm.transform.module_pass(opt_level=0, name="ImageMoves")
class ImageMoves:
    """Placement: behind the merging rules and `canonical_moves`, in front of the kernels."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        mod["main"] = _Images(mod).visit_expr(mod["main"])
        return mod
