"""Convolutions and products of halves and of bytes for tile registers.

    y[r, w, o] = sum_k x[r, w, k] * wp[o // L, k // p, o % L, k % p]

p values of k, two halves or four bytes, are one word, which the tiles multiply and sum at once
(:mod:`.amx`); L lanes of words are a row of one, two or three tiles. What is summed over is filled
up with zeros to whole tiles when weights are packed, and so is the image where it has to be copied
anyway.

A window of few channels is read as the one run of a row that it is: 7 pixels of 3 channels are 21
halves, one word short of a third of a tile, where seven times 3 would be seven tiles. Behind the
run stand other pixels, which meet zeros of the weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base
from tvmfuse.schedules.anchor import Conv2d, Dense, IntegerConv2d, IntegerDense
from tvmfuse.schedules.cpu.amx import TILE_LANES, TILE_ROWS, WORD_BYTES
from tvmfuse.schedules.cpu.contraction import PAD_BLOCK, cropped
from tvmfuse.schedules.cpu.tiles import FAMILY, STEP, step_cycles
from tvmfuse.schedules.variant import Variant

_WIDEST = 3 * TILE_LANES  # lanes that leave room for sums, weights and activations
_BITS = "uint16"  # of a half


@dataclass(frozen=True)
class Kind:
    """What is multiplied.

    Parameters
    ----------
    x, weight, sum
        Element types; that of ``weight`` is the packed one's.
    flag
        Of CPUs that have the instruction.
    per_word
        Values of one word.
    """

    x: str
    weight: str
    sum: str
    flag: str
    per_word: int


_BYTES = Kind("uint8", "int32", "int32", "amx_int8", 4)
_HALVES = Kind("bfloat16", "bfloat16", "float32", "amx_bf16", 2)


def has_tiles(anchor: Conv2d | Dense, hardware: Hardware) -> bool:
    """Whether the CPU multiplies such operands by tiles, and the template takes the operator."""
    kind = _kind(anchor)
    if kind is None or kind.flag not in hardware.features:
        return False
    return isinstance(anchor, Dense) or anchor.groups == 1


def tiles(anchor: Conv2d | Dense, hardware: Hardware) -> Variant:
    """The variant of an operator for which :func:`has_tiles` holds."""
    return _dense(anchor, hardware) if isinstance(anchor, Dense) else _conv2d(anchor, hardware)


def _kind(anchor: Conv2d | Dense) -> Kind | None:
    if isinstance(anchor, IntegerConv2d | IntegerDense):
        return _BYTES
    return _HALVES if (anchor.dtype, anchor.result) == (_HALVES.x, _HALVES.sum) else None


def _zero_point(anchor: Conv2d | Dense) -> int:
    return anchor.zero if isinstance(anchor, IntegerConv2d | IntegerDense) else 0


@dataclass(frozen=True)
class Depth:
    """A summed axis in steps of one tile instruction.

    Parameters
    ----------
    values
        Of the definition.
    per_word
        Values that one word holds.
    """

    values: int
    per_word: int

    @property
    def steps(self) -> int:
        """Instructions for one row of tiles."""
        return -(-self._words // TILE_LANES)

    @property
    def step(self) -> int:
        """Values of one step: whole tiles where the axis has to be filled up."""
        if self.values % self.per_word == 0 and self._words % self.steps == 0:
            return self._words // self.steps * self.per_word
        words = TILE_LANES if self.steps > 1 else self._words
        return words * self.per_word

    @property
    def padded(self) -> int:
        """Values of all steps."""
        return self.steps * self.step

    @property
    def _words(self) -> int:
        return -(-self.values // self.per_word)


def lanes_of(channels: int) -> int:
    """Lanes of a row of tiles: a divisor of ``channels`` that fills its tiles well."""

    def waste(lanes: int) -> tuple[float, int]:
        used = math.ceil(lanes / TILE_LANES) * TILE_LANES
        return used / lanes, -math.gcd(lanes, 8)

    options = base.divisors(channels, _WIDEST)
    return TILE_LANES if channels % TILE_LANES == 0 else min(options, key=waste)


def padded_pixels(rows: int, columns: int, more_rows: bool) -> tuple[int, int]:
    """Rows and columns for tiles of up to 16 columns, an even number of them where that pays."""
    options = []
    for height in range(1, TILE_ROWS + 1):
        across = math.ceil(columns / height)
        options += [(rows, n, height) for n in (across, across + across % 2)]
        if more_rows and rows > 1:
            options.append((rows + rows % 2, across, height))

    def cost(option: tuple[int, int, int]) -> tuple[float, int]:
        down, across, height = option
        pairs = across % 2 == 0 or (down % 2 == 0 and more_rows)
        each = step_cycles(2, 2, height) / 2 if pairs else step_cycles(1, 2, height)
        return down * across * each, down * across * height

    down, across, height = min(options, key=cost)
    return down, across * height


def _packed(w_KO: np.ndarray, lanes: int, zero: int) -> np.ndarray:
    """A matrix whose rows fill whole words: halves as [O/L, K/2, L, 2], bytes as words [.., L].

    Words have a last row: what sums of ``x - zero`` have more than sums of ``x``.
    """
    depth, channels = w_KO.shape
    per_word = WORD_BYTES // w_KO.itemsize
    split = w_KO.reshape(depth // per_word, per_word, channels // lanes, lanes)
    packed = np.ascontiguousarray(split.transpose(2, 0, 3, 1))
    if w_KO.dtype != np.int8:
        return packed
    words = packed.view(np.int32)[..., 0]
    if not zero:
        return words
    shift = -zero * w_KO.astype(np.int64).sum(0).reshape(channels // lanes, 1, lanes)
    return np.concatenate([words, shift.astype(np.int32)], axis=1)


def _packed_shape(channels: int, lanes: int, depth: int, kind: Kind, zero: int) -> tuple[int, ...]:
    shape = channels // lanes, depth // kind.per_word, lanes
    return (*shape, 2) if kind.weight == "bfloat16" else (shape[0], shape[1] + bool(zero), lanes)


def _weight(w: te.Tensor, lanes: int, row: Any, o: Any, k: Any, kind: Kind) -> Any:
    """The weight of output ``o`` for value ``k`` of word ``row``, in the type of sums."""
    if kind.weight == "bfloat16":
        return w(o // lanes, row, o % lanes, k % 2).astype(kind.sum)
    shift = tirx.const(0, "int32")
    for byte in range(
        WORD_BYTES - 1
    ):  # as a choice, not a sum: indices, and sums of them, are int64
        shift = tirx.Select(k % WORD_BYTES == byte, tirx.const(24 - 8 * byte, "int32"), shift)
    word = w(o // lanes, row, o % lanes)
    return tirx.shift_right(tirx.shift_left(word, shift), tirx.const(24, "int32"))


def _shifted(sums: te.Tensor, w: te.Tensor, lanes: int, zero: int) -> te.Tensor:
    """Sums of ``x - zero`` from those of ``x``: the weight's last row is the difference."""
    if not zero:
        return sums
    last = int(w.shape[1]) - 1
    return te.compute(
        sums.shape, lambda *i: sums(*i) + w[i[-1] // lanes, last, i[-1] % lanes], name="shift"
    )


def _cycles(pixels: int, steps: int, channels: int, hardware: Hardware) -> float:
    tiles = pixels / TILE_ROWS * math.ceil(channels / TILE_LANES)
    return tiles * steps * step_cycles(2, 2, TILE_ROWS) / 4 / hardware.cores


def _notes(lanes: int, step: int) -> dict[str, Any]:
    return {base.FAMILY: FAMILY, base.LANES: lanes, STEP: step}


def _conv2d(conv: Conv2d, hardware: Hardware) -> Variant:
    kind = _kind(conv)
    assert kind is not None
    lanes, zero = lanes_of(conv.O), _zero_point(conv)
    run = Depth(conv.KW * conv.C, kind.per_word)
    pixel = Depth(conv.C, kind.per_word)
    as_runs = conv.KW > 1 and conv.dilation[1] == 1 and run.steps < conv.KW * pixel.steps
    depth = run if as_runs else pixel
    windows = conv.KH * (1 if as_runs else conv.KW)
    rows, columns = padded_pixels(conv.OH, conv.OW, more_rows=True)
    channels = conv.C if as_runs else depth.padded
    packed = _packed_shape(conv.O, lanes, windows * depth.padded, kind, zero)

    def pack(w_OHWI: np.ndarray) -> np.ndarray:
        flat = w_OHWI.reshape(conv.O, windows, depth.values)
        wide = np.pad(flat, ((0, 0), (0, 0), (0, depth.padded - depth.values)))
        return _packed(wide.reshape(conv.O, -1).T, lanes, zero)

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        (sh, sw), (dh, dw) = conv.stride, conv.dilation
        reach = (columns - 1) * sw + (conv.KW - 1) * dw + 1
        if as_runs:
            reach = math.ceil(((columns - 1) * sw * conv.C + depth.padded) / conv.C)
        tall = (rows - 1) * sh + (conv.KH - 1) * dh + 1
        x = _padded_image(x, conv, (tall, reach, channels))
        kh = te.reduce_axis((0, conv.KH), "kh")
        kw = te.reduce_axis((0, 1 if as_runs else conv.KW), "kw")
        k = te.reduce_axis((0, depth.padded), "k")

        def body(n: Any, h: Any, col: Any, o: Any) -> Any:
            place = col * (sw * conv.C) + k
            at = (place // conv.C, place % conv.C) if as_runs else (col * sw + kw * dw, k)
            window = kh if as_runs else kh * conv.KW + kw
            weight = _weight(w, lanes, (window * depth.padded + k) // kind.per_word, o, k, kind)
            value = _value(x(n, h * sh + kh * dh, *at), kind)
            return te.sum(value * weight, axis=[kh, kw, k])

        shape, notes = (conv.N, rows, columns, conv.O), _notes(lanes, depth.step)
        wide = te.compute(shape, body, name="conv2d", attrs=notes)
        if rows > conv.OH:
            wide = te.compute(
                (conv.N, conv.OH, columns, conv.O), lambda *i: wide(*i), name="crop_rows"
            )
        return _shifted(cropped(wide, conv.OW), w, lanes, zero)

    shape = (conv.N, conv.H, conv.W, conv.C)
    cycles = _cycles(conv.N * rows * columns, windows * depth.steps, conv.O, hardware)
    beyond = as_runs and depth.padded > depth.values
    return Variant(
        "tiles", conv, shape, packed, compute, pack, cycles, _rtol(conv),
        exact=not beyond or kind.sum == "int32", weight_type=kind.weight,
    )  # fmt: skip


def _rtol(anchor: Conv2d | Dense) -> float:
    return 0.0 if isinstance(anchor, IntegerConv2d | IntegerDense) else 2e-5


def _padded_image(x: te.Tensor, conv: Conv2d, least: tuple[int, int, int]) -> te.Tensor:
    """The image with what stands around it, at least as tall, wide and deep as asked for."""
    top, left, bottom, right = conv.pad
    tall, wide = max(conv.H + top + bottom, least[0]), max(conv.W + left + right, least[1])
    shape = (conv.N, tall, wide, least[2])
    if shape == (conv.N, conv.H, conv.W, conv.C):
        return x

    def body(n: Any, h: Any, w: Any, c: Any) -> Any:
        inside = []
        if top or tall > conv.H:
            inside += [h >= top, h < conv.H + top]
        if left or wide > conv.W:
            inside += [w >= left, w < conv.W + left]
        if least[2] > conv.C:
            inside.append(c < conv.C)
        return _or_zero(inside, x(n, h - top, w - left, c), conv)

    return te.compute(shape, body, name=PAD_BLOCK)


def _or_zero(inside: list[Any], value: Any, anchor: Conv2d | Dense) -> Any:
    """The value where the conditions hold, else what stands for 0.

    Halves are stored as the integers of their bits: TVM 0.27 keeps a buffer of bfloat16 that is
    inside of a kernel in float32 ("BF16ComputeLegalize"), which no tile can load.
    """
    if anchor.dtype == "bfloat16":
        value = tirx.reinterpret(_BITS, value)
    around = tirx.const(_zero_point(anchor), str(value.ty.dtype))
    return tirx.if_then_else(tirx.all(*inside), value, around)


def _value(stored: Any, kind: Kind) -> Any:
    """A value, which may stand as its bits, in the type of sums."""
    value = tirx.reinterpret(kind.x, stored) if str(stored.ty.dtype) == _BITS else stored
    return value.astype(kind.sum)


def _dense(product: Dense, hardware: Hardware) -> Variant:
    kind = _kind(product)
    assert kind is not None
    lanes, zero, depth = lanes_of(product.O), _zero_point(product), Depth(product.K, kind.per_word)
    _, rows = padded_pixels(math.prod(product.lead), product.M, more_rows=False)
    packed = _packed_shape(product.O, lanes, depth.padded, kind, zero)

    def pack(w_KO: np.ndarray) -> np.ndarray:
        wide = np.pad(w_KO, ((0, depth.padded - product.K), (0, 0)))
        return _packed(wide, lanes, zero)

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        if (rows, depth.padded) != (product.M, product.K):
            x = _padded_matrix(x, product, rows, depth.padded)
        k = te.reduce_axis((0, depth.padded), "k")

        def body(*axes: Any) -> Any:
            *lead, m, o = axes
            weight = _weight(w, lanes, k // kind.per_word, o, k, kind)
            return te.sum(_value(x(*lead, m, k), kind) * weight, axis=[k])

        shape = (*product.lead, rows, product.O)
        wide = te.compute(shape, body, name="dense", attrs=_notes(lanes, depth.step))
        return _shifted(cropped(wide, product.M), w, lanes, zero)

    shape = (*product.lead, product.M, product.K)
    cycles = _cycles(math.prod(product.lead) * rows, depth.steps, product.O, hardware)
    return Variant(
        "tiles",
        product,
        shape,
        packed,
        compute,
        pack,
        cycles,
        _rtol(product),
        weight_type=kind.weight,
    )


def _padded_matrix(x: te.Tensor, product: Dense, rows: int, depth: int) -> te.Tensor:
    def body(*axes: Any) -> Any:
        *lead, m, k = axes
        inside = []
        if rows > product.M:
            inside.append(m < product.M)
        if depth > product.K:
            inside.append(k < product.K)
        return _or_zero(inside, x(*lead, m, k), product)

    return te.compute((*product.lead, rows, depth), body, name=PAD_BLOCK)
