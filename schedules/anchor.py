"""Anchors: the shapes of the heavy operators, as plain records that travel with the kernels.

Dimension letters: N batch, H W input height and width, C input channels, O output channels,
KH KW window, M rows of a matrix product, K its reduction length. Activations are NHWC (and
row-major for products); logical weights are OHWI (and [K, O] for products).
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

ATTR = "tvmfuse.anchor"  # PrimFunc attribute that carries an anchor as JSON


@dataclass(frozen=True)
class Conv2d:
    """A 2-d convolution with constant weights.

    Parameters
    ----------
    stride, pad, dilation
        (height, width) pairs; ``pad`` is (top, left, bottom, right).
    groups
        Channel groups; ``C`` and ``O`` are totals over all groups.
    dtype
        Element type of both operands.
    result
        That of sums and result, where it is another one; empty for ``dtype``.
    """

    N: int
    H: int
    W: int
    C: int
    O: int  # noqa: E741 - the field's own letter for output channels
    KH: int
    KW: int
    stride: tuple[int, int]
    pad: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    dtype: str
    result: str = ""

    @property
    def OH(self) -> int:
        """Output height."""
        reach = (self.KH - 1) * self.dilation[0] + 1
        return (self.H + self.pad[0] + self.pad[2] - reach) // self.stride[0] + 1

    @property
    def OW(self) -> int:
        """Output width."""
        reach = (self.KW - 1) * self.dilation[1] + 1
        return (self.W + self.pad[1] + self.pad[3] - reach) // self.stride[1] + 1

    @property
    def flops(self) -> float:
        """Multiplications and additions of the definition, each counted as one."""
        window = self.KH * self.KW * (self.C // self.groups)
        return 2.0 * self.N * self.OH * self.OW * self.O * window


@dataclass(frozen=True)
class Dense:
    """A matrix product ``x[..., M, K] @ w[K, O]`` with constant ``w``; ``lead`` are the ``...``.

    Parameters
    ----------
    dtype, result
        As in :class:`Conv2d`.
    """

    lead: tuple[int, ...]
    M: int
    K: int
    O: int  # noqa: E741
    dtype: str
    result: str = ""

    @property
    def flops(self) -> float:
        """Multiplications and additions of the definition."""
        rows = self.M
        for extent in self.lead:
            rows *= extent
        return 2.0 * rows * self.K * self.O


@dataclass(frozen=True)
class IntegerConv2d(Conv2d):
    """A convolution of uint8 with int8 weights, ``sum((x - zero) * w)`` as int32.

    Outside of the image stands ``zero``, which is what 0 was quantised to.
    """

    zero: int = 0


@dataclass(frozen=True)
class IntegerDense(Dense):
    """A product of uint8 with a matrix of int8, ``sum((x - zero) * w)`` as int32."""

    zero: int = 0


@dataclass(frozen=True)
class View:
    """Where an operand's elements lie in a stored tensor; counts in elements, not bytes.

    Parameters
    ----------
    buffer
        Which of the kernel's inputs holds them; -1 for the output.
    offset
        Place of the first element.
    lead
        Distance of neighbours along each leading axis; 0 where all share one matrix.
    row, column
        Distance of neighbouring rows and columns of one matrix.
    """

    buffer: int
    offset: int
    lead: tuple[int, ...]
    row: int
    column: int


@dataclass(frozen=True)
class BatchMatmul:
    """A product of two activations, ``x[M, K] @ y[K, O]`` for each index of the leading axes.

    Parameters
    ----------
    lead
        Leading axes; a view has stride 0 along those that its operand lacks.
    x, y
        Where the operands lie; a transposed ``y`` has ``row`` 1.
    buffers
        Shape and element type of each input.
    """

    lead: tuple[int, ...]
    M: int
    K: int
    O: int  # noqa: E741
    x: View
    y: View
    buffers: tuple[tuple[tuple[int, ...], str], ...]
    dtype: str

    @property
    def flops(self) -> float:
        """Multiplications and additions of the definition."""
        return 2.0 * math.prod(self.lead) * self.M * self.K * self.O


@dataclass(frozen=True)
class Step:
    """What happens to the scores before the softmax.

    Parameters
    ----------
    kind
        ``"scale"`` (times ``value``), ``"multiply"`` (times ``mask``), ``"add"`` (plus
        ``mask``), ``"where"`` (``value`` where ``mask`` is false), ``"unless"`` (``value`` where
        ``mask`` is true) or ``"causal"`` (``value`` where key > query + ``offset``).
    """

    kind: str
    value: float = 0.0
    offset: int = 0
    mask: View | None = None


@dataclass(frozen=True)
class Attention:
    """``softmax(steps(q @ k^T)) @ v`` for each index of the leading axes.

    Parameters
    ----------
    lead
        Leading axes (batch, heads, groups of heads …).
    SQ, SK
        Queries and keys.
    D, DV
        Width of queries and keys, and of values.
    q, k, v, out
        Rows are queries, keys, keys and queries; columns the width.
    steps
        In order.
    safe
        Whether a row in which every score is -inf gives zeros (else NaN, as softmax does).
    buffers
        Shape and element type of each input.
    out_shape
        Shape as which the output is stored.
    """

    lead: tuple[int, ...]
    SQ: int
    SK: int
    D: int
    DV: int
    q: View
    k: View
    v: View
    out: View
    steps: tuple[Step, ...]
    safe: bool
    buffers: tuple[tuple[tuple[int, ...], str], ...]
    out_shape: tuple[int, ...]
    dtype: str

    @property
    def flops(self) -> float:
        """Multiplications and additions of the two products."""
        return 2.0 * math.prod(self.lead) * self.SQ * self.SK * (self.D + self.DV)


IntegerAnchor = IntegerConv2d | IntegerDense
Anchor = Conv2d | Dense | BatchMatmul | Attention
_KINDS = {
    "conv2d": Conv2d,
    "dense": Dense,
    "integer_conv2d": IntegerConv2d,
    "integer_dense": IntegerDense,
    "batch_matmul": BatchMatmul,
    "attention": Attention,
}
_PARTS = dict.fromkeys(("q", "k", "v", "out", "mask", "x", "y"), View)


def to_text(anchor: Anchor) -> str:
    """Serialise for a PrimFunc attribute."""
    kind = next(k for k, cls in _KINDS.items() if type(anchor) is cls)
    fields = dataclasses.asdict(anchor)
    if not fields.get("result", "own"):
        del fields["result"]  # records and verdicts know kernels by this text
    return json.dumps({"kind": kind, **fields})


def from_text(text: str) -> Anchor:
    """Inverse of :func:`to_text`."""
    data = json.loads(text)
    return _record(_KINDS[data.pop("kind")], data)


def _record(cls: Any, data: dict[str, Any]) -> Any:
    return cls(**{name: _field(name, value) for name, value in data.items()})


def _field(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_field(name, v) for v in value)
    if isinstance(value, dict):
        return _record(_PARTS.get(name, Step), value)
    return value
