"""Matrix products and convolutions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tvmfuse.frontend.onnx.call import Call, Operator, Refusal
from tvmfuse.frontend.onnx.operators.windows import padded, window_of

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a = a.T if call.attribute("transA", 0) else a
    transposed = bool(call.attribute("transB", 0))
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    if (
        transposed
        and alpha == beta == 1.0
        and (c is None or c.ndim == 1)
        and (a.is_floating_point())
    ):
        return F.linear(a, b, c)
    product = a @ (b.T if transposed else b)
    product = product if alpha == 1.0 else (alpha * product).to(product.dtype)
    if c is None:
        return product
    return product + (c if beta == 1.0 else (beta * c).to(c.dtype))


def convolve(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution with the attributes of ``Conv``."""
    rank = x.ndim - 2
    if rank not in _CONV:
        raise Refusal(f"convolves over {rank} axes; known are 1, 2 and 3")
    window = window_of(call, list(weight.shape[2:]), list(x.shape[2:]))
    padding: Any = window.before
    if not window.symmetric or min(window.before) < 0:
        x, padding = padded(x, window.before, window.after, 0.0), 0
    groups = call.attribute("group", 1)
    return _CONV[rank](x, weight, bias, window.stride, padding, window.dilation, groups)


def _conv(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return convolve(call, x, weight, bias)


def _conv_transpose(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rank = x.ndim - 2
    if rank not in _TRANSPOSED:
        raise Refusal(f"convolves over {rank} axes; known are 1, 2 and 3")
    kernel = list(weight.shape[2:])
    stride = call.attribute("strides") or [1] * rank
    dilation = call.attribute("dilations") or [1] * rank
    more = call.attribute("output_padding") or [0] * rank
    groups = call.attribute("group", 1)
    natural = [
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(x.shape[2:], stride, kernel, dilation, strict=True)
    ]
    before, after = _transposed_pads(call, list(x.shape[2:]), natural, list(stride), more)
    full = _TRANSPOSED[rank](x, weight, bias, stride, 0, 0, groups, dilation)
    # What the padding of the output adds lies beyond what the kernel reaches: only the bias.
    cut_before = [-b for b in before]
    cut_after = [m - a for a, m in zip(after, more, strict=True)]
    if bias is None or max(cut_after) <= 0:
        return padded(full, cut_before, cut_after, 0.0)
    wide = padded(
        _TRANSPOSED[rank](x, weight, None, stride, 0, 0, groups, dilation),
        cut_before, cut_after, 0.0,
    )  # fmt: skip
    return wide + bias.reshape([1, -1, *[1] * rank])


def _transposed_pads(
    call: Call, extents: list[int], natural: list[int], stride: list[int], more: list[int]
) -> tuple[list[int], list[int]]:
    rank = len(extents)
    auto = call.attribute("auto_pad", "NOTSET")
    wanted = call.attribute("output_shape")
    if wanted is not None:
        wanted = list(wanted[-rank:])
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(extents, stride, strict=True)]
    else:
        pads = call.attribute("pads") or [0] * (2 * rank)
        return list(pads[:rank]), list(pads[rank:])
    total = [n + m - w for n, m, w in zip(natural, more, wanted, strict=True)]
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    return (small, large) if auto == "SAME_UPPER" else (large, small)


def _einsum(call: Call, *inputs: Tensor) -> Tensor:
    return torch.einsum(call.attribute("equation").replace(" ", ""), *inputs)


def _col2im(call: Call, *inputs: Any) -> Tensor:
    x = inputs[0]
    image, block = call.setting(1, "image_shape", inputs), call.setting(2, "block_shape", inputs)
    rank = len(image)
    stride = list(call.attribute("strides") or [1] * rank)
    dilation = list(call.attribute("dilations") or [1] * rank)
    pads = list(call.attribute("pads") or [0] * (2 * rank))
    if rank == 2 and pads[:rank] == pads[rank:]:
        return F.fold(x, image, block, dilation, pads[:rank], stride)
    if rank not in _TRANSPOSED:
        raise Refusal(f"works on {rank} axes; known are 1, 2 and 3")
    reach = [(k - 1) * d + 1 for k, d in zip(block, dilation, strict=True)]
    wide = [n + b + a for n, b, a in zip(image, pads[:rank], pads[rank:], strict=True)]
    grid = [(w - r) // s + 1 for w, r, s in zip(wide, reach, stride, strict=True)]
    # A transposed convolution in which each element of a block has a channel of its own.
    taps = math.prod(block)
    channels = x.shape[1] // taps
    weight = torch.eye(taps, dtype=x.dtype).reshape(taps, 1, *block)
    weight = weight.repeat(channels, 1, *[1] * rank)
    columns = x.reshape(x.shape[0], -1, *grid)
    summed = _TRANSPOSED[rank](columns, weight, None, stride, 0, 0, channels, dilation)
    after = [n + b - m for n, b, m in zip(image, pads[:rank], summed.shape[2:], strict=True)]
    return padded(summed, [-b for b in pads[:rank]], after, 0.0)


def _det(call: Call, x: Tensor) -> Tensor:
    size = x.shape[-1]
    if size > 4:
        raise Refusal(f"is of {size} rows; known are up to 4")
    return _minor(x, list(range(size)), 0)


def _minor(x: Tensor, columns: list[int], row: int) -> Tensor:
    """The determinant of the rows from ``row`` on and these columns, by Laplace's expansion."""
    if len(columns) == 1:
        return x[..., row, columns[0]]
    total = None
    for place, column in enumerate(columns):
        rest = columns[:place] + columns[place + 1 :]
        term = x[..., row, column] * _minor(x, rest, row + 1) * (-1) ** place
        total = term if total is None else total + term
    assert total is not None
    return total


OPERATORS: dict[str, Operator] = {
    "Col2Im": _col2im, "Conv": _conv, "ConvTranspose": _conv_transpose, "Det": _det,
    "Einsum": _einsum, "Gemm": _gemm, "MatMul": lambda c, a, b: torch.matmul(a, b),
}  # fmt: skip
