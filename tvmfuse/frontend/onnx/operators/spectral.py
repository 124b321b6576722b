"""Fourier transforms and what goes with them."""

from __future__ import annotations

import math
from typing import Any

import onnx
import torch
from torch import Tensor

from tvmfuse.frontend.onnx.call import Call, Operator, Refusal
from tvmfuse.frontend.onnx.tensors import element_type


def _dft_matrix(length: int, points: int, sign: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    turns = torch.arange(points)[:, None] * torch.arange(length)[None] % points
    angles = turns.double() * (2 * math.pi / points)
    return torch.cos(angles).to(dtype), (sign * torch.sin(angles)).to(dtype)


def _dft(call: Call, *inputs: Any) -> Tensor:
    x = inputs[0]
    given = call.array(2, "axis", inputs)
    axis = call.attribute("axis", 1) if call.version < 20 else -2
    axis = (axis if given is None else int(given.item())) % x.ndim
    inverse, onesided = call.attribute("inverse", 0), call.attribute("onesided", 0)
    size = call.array(1, "dft_length", inputs)
    if inverse and onesided:
        return _to_real(x, axis, None if size is None else int(size.item()))
    points = x.shape[axis] if size is None else int(size.item())
    real = x[..., 0].movedim(axis, -1)
    imaginary = x[..., 1].movedim(axis, -1) if x.shape[-1] == 2 else torch.zeros_like(real)
    used = min(points, real.shape[-1])
    c, s = _dft_matrix(used, points, 1.0 if inverse else -1.0, x.dtype)
    if onesided:
        c, s = c[: points // 2 + 1], s[: points // 2 + 1]
    real, imaginary = real[..., :used], imaginary[..., :used]
    parts = (real @ c.T - imaginary @ s.T, real @ s.T + imaginary @ c.T)
    scale = 1.0 / points if inverse else 1.0
    return torch.stack([(p * scale).movedim(-1, axis) for p in parts], -1)


def _to_real(x: Tensor, axis: int, points: int | None) -> Tensor:
    """The real signal whose transform's first half is given."""
    real, imaginary = (x[..., part].movedim(axis, -1) for part in (0, 1))
    points = 2 * (real.shape[-1] - 1) if points is None else points
    used = min(points // 2 + 1, real.shape[-1])
    c, s = _dft_matrix(used, points, 1.0, x.dtype)
    # Each but the first, and the middle one of an even number, stands for its conjugate too.
    twice = [1.0 if k == 0 or 2 * k == points else 2.0 for k in range(used)]
    factors = torch.tensor(twice, dtype=x.dtype) / points
    sums = (real[..., :used] * factors) @ c.T - (imaginary[..., :used] * factors) @ s.T
    return sums.movedim(-1, axis).unsqueeze(-1)


def _mel_weights(call: Call, *inputs: Any) -> Tensor:
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    given = [call.required(i, name, inputs).item() for i, name in enumerate(names)]
    bins, length, rate, *hertz = given
    low, high = (2595 * math.log10(1 + edge / 700) for edge in hertz)
    step = (high - low) / (bins + 2)
    edges = [
        int((length + 1) * (700 * (10 ** ((low + place * step) / 2595) - 1)) // rate)
        for place in range(bins + 2)
    ]
    weights = torch.zeros(length // 2 + 1, bins, dtype=torch.float64)
    for place, (left, center, right) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        for row in range(left, center + 1):
            weights[row, place] = (row - left) / (center - left) if center > left else 1.0
        for row in range(center, right):
            weights[row, place] = (right - row) / (right - center)
    kind = call.attribute("output_datatype", onnx.TensorProto.FLOAT)
    return weights.to(element_type(kind, "its result"))


def _stft(call: Call, *inputs: Any) -> Tensor:
    signal = inputs[0]
    step = int(call.required(1, "frame_step", inputs).item())
    window = inputs[2] if len(inputs) > 2 else None
    given = call.array(3, "frame_length", inputs)
    if given is None and window is None:
        raise Refusal("has neither a window nor a frame_length")
    length = int(given.item()) if given is not None else inputs[2].shape[0]
    if signal.ndim == 3 and signal.shape[-1] == 2:
        raise Refusal("its signal is complex")
    signal = signal.reshape(signal.shape[:2])
    starts = range(0, signal.shape[1] - length + 1, step)
    frames = torch.stack([signal[:, s : s + length] for s in starts], 1)
    frames = frames if window is None else frames * window
    c, s = _dft_matrix(length, length, -1.0, signal.dtype)
    kept = length // 2 + 1 if call.attribute("onesided", 1) else length
    return torch.stack([frames @ c[:kept].T, frames @ s[:kept].T], -1)


OPERATORS: dict[str, Operator] = {"DFT": _dft, "MelWeightMatrix": _mel_weights, "STFT": _stft}
