"""Call a gather that repeats rows and columns what it is: resizing to the nearest.

PyTorch says nearest resizing as a gather with constant indices. A gather keeps the axes of the
image in their order, so that every convolution around it changes its layout; resizing takes the
layout of the target.

Before: ``index_tensor(x[N, C, H, W], (…, n, c, [[0], [0], [1], [1], …], [0, 0, 1, 1, …]))``
After:  ``resize2d(x, (2·H, 2·W), "nearest_neighbor")``
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmfuse.passes.relax_tools import array_of, op_name, shape_of, value_behind

_IMAGE = 4  # axes: batch, channels, rows, columns


@mutator
class _Renamer(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        return self._resized(call) if op_name(call) == "relax.index_tensor" else call

    def _resized(self, call: relax.Call) -> relax.Expr:
        source = shape_of(call.args[0])
        places = value_behind(call.args[1], self.lookup_binding)
        if source is None or len(source) != _IMAGE or not isinstance(places, relax.Tuple):
            return call
        indices = [array_of(value_behind(f, self.lookup_binding)) for f in places.fields]
        times = repeats(source, indices)
        if times is None or times[:2] != (1, 1):
            return call
        return relax.op.image.resize2d(
            call.args[0],
            (source[2] * times[2], source[3] * times[3]),
            layout="NCHW",
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        )


def repeats(source: tuple[int, ...], indices: list[np.ndarray | None]) -> tuple[int, ...] | None:
    """How often indices, one array an axis, repeat each element in a row.

    Returns
    -------
    tuple of int or None
        For each axis; None if an index is not known, does not lie along its own axis alone, or
        does anything else than repeat.
    """
    if len(indices) != len(source):
        return None
    found = []
    for axis, (extent, index) in enumerate(zip(source, indices, strict=True)):
        if index is None or not extent or index.size % extent or index.ndim > len(source):
            return None
        wide = (1,) * (len(source) - index.ndim) + index.shape
        times = index.size // extent
        alone = all(e == 1 for a, e in enumerate(wide) if a != axis)
        if not times or not alone or not np.array_equal(
            index.reshape(-1), np.repeat(np.arange(extent), times)
        ):  # fmt: skip
            return None
        found.append(times)
    return tuple(found)


@tvm.transform.module_pass(opt_level=0, name="NearestResize")
class NearestResize:
    """Placement: graph level, before layout conversion; constants are folded."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        mod["main"] = _Renamer(mod).visit_expr(mod["main"])
        return mod
