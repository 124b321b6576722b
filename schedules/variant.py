"""Variants: the algorithms that can compute one anchor, each with its own weight layout.

A variant is what the planner's module is specialised to before scheduling: it brings the
computation as a tensor expression over packed weights and the NumPy function that packs them, so
that nothing is transformed at run time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import te, tirx
from tvm.tirx import PrimFunc

from tvmfuse.schedules.anchor import Anchor, Conv2d, Dense

OUT_ELEMWISE_FUSABLE = 4  # TVM's OpPatternKind of a convolution


@dataclass(frozen=True)
class Variant:
    """One algorithm for one anchor.

    Parameters
    ----------
    name
        Short name for logs and reports, e.g. ``"winograd4"``.
    anchor
        The operator it computes.
    input_shape, weight_shape
        Shapes of the activation and of the packed weight.
    compute
        ``compute(x, w) -> y`` over TE tensors.
    pack
        Packs the logical weight (OHWI, or [K, O]) into ``weight_shape``.
    cycles
        Estimated cycles of one call, to rank the variants of one anchor; a model, not a measure.
    rtol
        Largest error against the definition in float64, relative to the output's largest
        magnitude, that a correct implementation can show.
    exact
        Whether an output depends on its own window alone, so that NaN and infinity stay where
        the definition puts them.
    moves
        Whether its template also writes images with channels first, when a transpose is part of
        the kernel.
    weight_type
        Element type of the packed weight; empty for that of the activation.
    """

    name: str
    anchor: Anchor
    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    compute: Callable[[te.Tensor, te.Tensor], te.Tensor]
    pack: Callable[[np.ndarray], np.ndarray]
    cycles: float
    rtol: float
    exact: bool = True
    moves: bool = False
    weight_type: str = ""

    @property
    def weight_dtype(self) -> str:
        """Element type of the packed weight."""
        return self.weight_type or self.anchor.dtype

    @property
    def weight_bytes(self) -> int:
        """Size of the packed weight."""
        return math.prod(self.weight_shape) * tvm.DataType(self.weight_dtype).bits // 8

    def prim_func(self) -> PrimFunc:
        """Build the unscheduled kernel ``(x, w, y)``."""
        x = te.placeholder(self.input_shape, self.anchor.dtype, name="x")
        w = te.placeholder(self.weight_shape, self.weight_dtype, name="w")
        func = te.create_prim_func([x, w, self.compute(x, w)], index_dtype_override="int64")
        return func.with_attr("op_pattern", OUT_ELEMWISE_FUSABLE).with_attr("tirx.noalias", True)


@dataclass(frozen=True)
class WrittenVariant:
    """One algorithm for an anchor without a constant weight, which brings its kernel itself.

    Parameters
    ----------
    build
        Gives the kernel ``(*inputs, out)``.
    name, anchor, cycles, rtol, exact
        As in :class:`Variant`.
    """

    name: str
    anchor: Anchor
    build: Callable[[], PrimFunc]
    cycles: float
    rtol: float
    exact: bool = True
    weight_bytes: int = 0

    def prim_func(self) -> PrimFunc:
        """Build the kernel."""
        return self.build()


AnyVariant = Variant | WrittenVariant


def twin(anchor: Conv2d | Dense) -> Conv2d | Dense:
    """The anchor with operands of the type of its sums."""
    return dataclasses.replace(anchor, dtype=anchor.result or anchor.dtype, result="")


def widened(variant: Variant, anchor: Conv2d | Dense) -> Variant:
    """A variant of the twin of ``anchor`` that reads and stores operands of the narrow type.

    They are widened where they are read. Only for variants that pack weights by moving them: what
    is computed of weights (Winograd's) would be rounded once more.
    """

    def wide(x: te.Tensor, name: str) -> te.Tensor:
        return te.compute(x.shape, lambda *i: x(*i).astype(anchor.result), name=name)

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        return variant.compute(wide(x, "wide_x"), wide(w, "wide_w"))

    return dataclasses.replace(variant, anchor=anchor, compute=compute)


def zero(dtype: str) -> tirx.PrimExpr:
    """The additive identity of ``dtype``."""
    return tirx.const(0, dtype)
