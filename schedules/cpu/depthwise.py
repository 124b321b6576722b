"""Depthwise convolution on CPU: vectors of channels, weights [KH, KW, C]."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base
from tvmfuse.schedules.anchor import Conv2d
from tvmfuse.schedules.cpu.contraction import direct_cycles, padded_input
from tvmfuse.schedules.variant import Variant


def applicable(conv: Conv2d) -> bool:
    """One input and one output channel a group."""
    return conv.groups == conv.C == conv.O and conv.groups > 1


def depthwise(conv: Conv2d, hardware: Hardware) -> Variant:
    """Depthwise convolution; scheduled by the outer-reduction template."""

    def pack(w_OHWI: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(w_OHWI.reshape(conv.C, conv.KH, conv.KW).transpose(1, 2, 0))

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        x = padded_input(x, conv, conv.OW)
        kh = te.reduce_axis((0, conv.KH), "kh")
        kw = te.reduce_axis((0, conv.KW), "kw")
        (sh, sw), (dh, dw) = conv.stride, conv.dilation

        def body(n: Any, h: Any, col: Any, c: Any) -> Any:
            return te.sum(
                x[n, h * sh + kh * dh, col * sw + kw * dw, c] * w[kh, kw, c], axis=[kh, kw]
            )

        return te.compute(
            (conv.N, conv.OH, conv.OW, conv.C),
            body,
            name="depthwise",
            attrs={base.FAMILY: "outer_reduction"},
        )

    shape = (conv.N, conv.H, conv.W, conv.C)
    packed = (conv.KH, conv.KW, conv.C)
    cycles = direct_cycles(conv, hardware)
    return Variant("depthwise", conv, shape, packed, compute, pack, cycles, rtol=2e-5)
