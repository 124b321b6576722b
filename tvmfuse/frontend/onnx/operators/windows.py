"""What convolutions and pooling share: strides, dilations and the padding that ONNX means."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional as F

from tvmfuse.frontend.onnx.call import Call, Refusal


class Window(NamedTuple):
    """How a kernel moves over the spatial axes; ``before`` and ``after`` are the padding."""

    kernel: list[int]
    stride: list[int]
    dilation: list[int]
    before: list[int]
    after: list[int]

    @property
    def symmetric(self) -> bool:
        """Whether PyTorch's one number of padding an axis can say it."""
        return self.before == self.after


def window_of(call: Call, kernel: list[int], extents: list[int]) -> Window:
    """The window of a node over axes of these extents."""
    rank = len(kernel)
    stride = list(call.attribute("strides") or [1] * rank)
    dilation = list(call.attribute("dilations") or [1] * rank)
    auto = call.attribute("auto_pad", "NOTSET")
    if auto == "NOTSET":
        pads = call.attribute("pads") or [0] * (2 * rank)
        return Window(kernel, stride, dilation, list(pads[:rank]), list(pads[rank:]))
    if auto == "VALID":
        return Window(kernel, stride, dilation, [0] * rank, [0] * rank)
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise Refusal(f"has auto_pad {auto!r}")
    before, after = [], []
    for n, k, s, d in zip(extents, kernel, stride, dilation, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        small, large = total // 2, total - total // 2
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
    return Window(kernel, stride, dilation, before, after)


def padded(x: torch.Tensor, before: list[int], after: list[int], value: float) -> torch.Tensor:
    """``x`` with constant padding at its spatial (last) axes; negative padding cuts."""
    pads = [n for b, a in zip(reversed(before), reversed(after), strict=True) for n in (b, a)]
    return F.pad(x, pads, value=value) if any(pads) else x
