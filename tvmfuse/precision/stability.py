"""Range analysis: which values of a model overflow or underflow in half precision, and where.

The model runs once in float64, and every value is looked at: that of each operator, and the sums
inside of operators, which overflow before any value does where they are kept in half precision:

- products (matrix products, convolutions, attention scores): the *bound* K · max|a| · max|b| of the
  sum of K terms. Sums that are kept in float32, as on tensor cores, do not come near float32's end.
- normalisations, means and variances: the largest sum and the largest sum of squares of a row, as
  they are (no bound).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tvmfuse.errors import ImportModelError
from tvmfuse.frontend.locate import node_location
from tvmfuse.precision.taps import run_exact

FORMATS = {"float16": torch.float16, "bfloat16": torch.bfloat16}
VALUE, BOUND, SUM, SQUARES = "value", "bound of the sum", "largest sum", "largest sum of squares"


@dataclass(frozen=True)
class Span:
    """What one value, or one sum inside an operator, does in one type.

    Parameters
    ----------
    overflow
        Share of the elements that become infinite.
    underflow
        Share of the elements that are not zero and become zero.
    subnormal
        Share of the elements that lie below the smallest normal number and lose digits.
    """

    overflow: float = 0.0
    underflow: float = 0.0
    subnormal: float = 0.0


@dataclass(frozen=True)
class Range:
    """Magnitudes of one value.

    Parameters
    ----------
    node, operator, place
        Name in the exported program, what computes it, and where the user's code has it.
    what
        :data:`VALUE`, or which sum inside the operator; a bound is called one.
    largest, smallest
        Magnitudes; the smallest one that is not zero.
    elements
        How many were looked at; 1 for a bound.
    spans
        By type of :data:`FORMATS`.
    """

    node: str
    operator: str
    place: str
    what: str
    largest: float
    smallest: float
    elements: int
    spans: dict[str, Span] = field(default_factory=dict)

    def troubled(self, dtype: str) -> bool:
        """Whether anything overflows or vanishes in a type."""
        return self.spans[dtype].overflow > 0 or self.spans[dtype].underflow > 0


@dataclass(frozen=True)
class Stability:
    """All ranges in order of execution."""

    ranges: tuple[Range, ...]

    def troubled(self, dtype: str) -> list[Range]:
        """Values and sums that overflow or vanish in a type."""
        return [r for r in self.ranges if r.troubled(dtype)]

    def to_json(self) -> dict[str, Any]:
        """Return plain data: all ranges, and for each type the rows that are in trouble."""
        return {
            "ranges": [asdict(r) for r in self.ranges],
            "troubled": {
                dtype: [_row(r, dtype) for r in self.troubled(dtype)] for dtype in FORMATS
            },
        }


def _row(found: Range, dtype: str) -> dict[str, Any]:
    span = found.spans[dtype]
    return {
        "node": found.node, "what": found.what, "largest": found.largest,
        "smallest": found.smallest, "overflow_%": 100 * span.overflow,
        "underflow_%": 100 * span.underflow, "place": found.place,
    }  # fmt: skip


def stability_of(program: Any, inputs: Sequence[Any]) -> Stability:
    """Run a program in float64 and look at every range.

    Parameters
    ----------
    program
        A ``torch.export.ExportedProgram``.
    inputs
        Positional arguments of the model.

    Raises
    ------
    ImportModelError
        An operator fails in float64; the message names it.
    """
    found: list[Range] = []
    at = ""

    def before(node: Any, args: Any, kwargs: Any) -> None:
        nonlocal at
        at = f"{node.name} at {node_location(node.meta.get('stack_trace'))}"
        inside = _INSIDE.get(_operator(node))
        if inside is not None:
            for what, value in inside(*args, **kwargs):
                found.append(_range(node, what, value))

    def see(node: Any, value: Any) -> None:
        tensors = value if isinstance(value, (tuple, list)) else (value,)
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                found.append(_range(node, VALUE, tensor))

    leaves = [x for x in pytree.tree_leaves(tuple(inputs)) if isinstance(x, torch.Tensor)]
    functional = program.run_decompositions({})
    try:
        run_exact(functional, leaves, see, before)
    except Exception as error:  # an operator without a float64 form, in whatever way
        said = (str(error).splitlines() or [""])[0]
        raise ImportModelError(
            f"the model does not run in float64: {at} fails with {type(error).__name__}: {said}"
        ) from error
    return Stability(tuple(r for r in found if r.elements))


def _range(node: Any, what: str, value: torch.Tensor) -> Range:
    size = value.abs()
    real = size[size.isfinite() & (size > 0)]
    largest = float(size.max()) if size.numel() else 0.0
    return Range(
        node.name,
        _operator(node),
        node_location(node.meta.get("stack_trace")),
        what,
        largest,
        float(real.min()) if real.numel() else 0.0,
        size.numel(),
        {name: _span(size, dtype) for name, dtype in FORMATS.items()},
    )


def _span(size: torch.Tensor, dtype: torch.dtype) -> Span:
    count = max(1, size.numel())
    rounded = size.to(dtype)
    overflow = int((rounded.isinf() & size.isfinite()).sum())
    gone = (rounded == 0) & (size != 0)
    subnormal = (size != 0) & (size < torch.finfo(dtype).smallest_normal) & ~gone
    return Span(overflow / count, int(gone.sum()) / count, int(subnormal.sum()) / count)


def _operator(node: Any) -> str:
    return str(node.target).removeprefix("aten.").partition(".")[0]


Inside = list[tuple[str, torch.Tensor]]


def _most(value: torch.Tensor) -> float:
    return float(value.abs().max()) if value.numel() else 0.0


def _bound(terms: int, a: torch.Tensor, b: torch.Tensor, rest: Any = None) -> Inside:
    bound = terms * _most(a) * _most(b) + (0.0 if rest is None else _most(rest))
    return [(BOUND, torch.tensor([bound], dtype=torch.float64))]


def _matmul(a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> Inside:
    return _bound(a.shape[-1], a, b)


def _addmm(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **scale: Any) -> Inside:
    alpha, beta = scale.get("alpha", 1), scale.get("beta", 1)
    return _bound(a.shape[-1], a * alpha, b, c * beta)


def _linear(x: torch.Tensor, w: torch.Tensor, bias: Any = None) -> Inside:
    return _bound(x.shape[-1], x, w, bias)


def _conv(x: torch.Tensor, w: torch.Tensor, bias: Any = None, *_: Any) -> Inside:
    return _bound(math.prod(w.shape[1:]), x, w, bias)  # the second axis holds one group's channels


def _convolution(x: torch.Tensor, w: torch.Tensor, bias: Any, *rest: Any) -> Inside:
    transposed, groups = bool(rest[3]), int(rest[5])
    return _transposed(x, w, bias, 1, 0, 0, groups) if transposed else _conv(x, w, bias)


def _transposed(x: torch.Tensor, w: torch.Tensor, bias: Any = None, *rest: Any) -> Inside:
    groups = int(rest[3]) if len(rest) > 3 else 1
    return _bound(math.prod(w.shape[2:]) * w.shape[0] // groups, x, w, bias)


def _attention(q: torch.Tensor, k: torch.Tensor, *_: Any, **named: Any) -> Inside:
    scale = named.get("scale")
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    return _bound(q.shape[-1], q * factor, k)


def _sums(x: torch.Tensor, axes: Any) -> Inside:
    """Plain sum, and sum of squares around the mean, of every row."""
    axes = tuple(range(x.ndim)) if axes in (None, [], ()) else axes
    centred = x - x.mean(axes, keepdim=True)
    return [(SUM, x.sum(axes)), (SQUARES, (centred * centred).sum(axes))]


def _layer_norm(x: torch.Tensor, normalized: Sequence[int], *_: Any) -> Inside:
    return _sums(x, tuple(range(x.ndim - len(normalized), x.ndim)))


def _group_norm(x: torch.Tensor, *rest: Any) -> Inside:
    groups = rest[0] if isinstance(rest[0], int) else rest[5]  # group_norm, native_group_norm
    return _sums(x.reshape(x.shape[0], groups, -1), (2,))


def _instance_norm(x: torch.Tensor, *_: Any) -> Inside:
    return _sums(x, tuple(range(2, x.ndim)))


def _reduction(x: torch.Tensor, axes: Any = None, *_: Any, **__: Any) -> Inside:
    if not x.is_floating_point():
        return []
    return _sums(x, None if isinstance(axes, (bool, torch.dtype)) else axes)


def _mean(x: torch.Tensor, axes: Any = None, *_: Any, **__: Any) -> Inside:
    return _reduction(x, axes)[:1]


def _softmax(x: torch.Tensor, axis: int, *_: Any, **__: Any) -> Inside:
    return [(SUM, (x - x.amax(axis, keepdim=True)).exp().sum(axis))]


_INSIDE: dict[str, Callable[..., Inside]] = {
    **dict.fromkeys(("mm", "bmm", "matmul"), _matmul),
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
    "linear": _linear,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _conv),
    "convolution": _convolution,
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("layer_norm", "native_layer_norm"), _layer_norm),
    **dict.fromkeys(("group_norm", "native_group_norm"), _group_norm),
    "instance_norm": _instance_norm,
    **dict.fromkeys(("var", "var_mean", "std", "std_mean"), _reduction),
    "mean": _mean,
    **dict.fromkeys(("softmax", "_softmax", "_safe_softmax"), _softmax),
}
