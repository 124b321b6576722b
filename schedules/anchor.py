"""Anchors: the shapes of the heavy operators, as plain records that travel with the kernels.

Dimension letters: N batch, H W input height and width, C input channels, O output channels,
KH KW window, M rows of a matrix product, K its reduction length. Activations are NHWC (and
row-major for products); logical weights are OHWI (and [K, O] for products).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

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
    """A matrix product ``x[..., M, K] @ w[K, O]`` with constant ``w``; ``lead`` are the ``...``."""

    lead: tuple[int, ...]
    M: int
    K: int
    O: int  # noqa: E741
    dtype: str

    @property
    def flops(self) -> float:
        """Multiplications and additions of the definition."""
        rows = self.M
        for extent in self.lead:
            rows *= extent
        return 2.0 * rows * self.K * self.O


Anchor = Conv2d | Dense
_KINDS = {"conv2d": Conv2d, "dense": Dense}


def to_text(anchor: Anchor) -> str:
    """Serialise for a PrimFunc attribute."""
    kind = next(k for k, cls in _KINDS.items() if isinstance(anchor, cls))
    return json.dumps({"kind": kind, **dataclasses.asdict(anchor)})


def from_text(text: str) -> Anchor:
    """Inverse of :func:`to_text`."""
    data = json.loads(text)
    cls = _KINDS[data.pop("kind")]
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items()})
