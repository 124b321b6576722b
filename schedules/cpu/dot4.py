"""Dot products of four bytes that are added to an int32: ``vpdpbusd`` of AVX-512-VNNI.

Activations are uint8, weights int8; four of each along the summed axis stand in one int32 word, so
that a product of bytes is a contraction of words in which ``a + x * w`` is ``accumulate(a,
pair(x, w))``. Both are operators of their own until TVM lowers a kernel: the sum of the products
of four bytes needs 18 bits, and a rule that saw ``pair`` alone would have to hand them on.

``vpdpbusd`` does not saturate. (``vpmaddubsw``, which older processors have, does: 255 * 127 twice
is beyond int16. It is not used; there, bytes are widened and multiplied as int32.)
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tirx

from tvmfuse.hardware import Hardware

WORD = 4  # bytes of a word
_WORD = "tirx.tvmfuse_word"
_PAIR, _ACCUMULATE = "tirx.tvmfuse_pair", "tirx.tvmfuse_accumulate"
_PURE = 1  # TVM's CallEffectKind: may be moved, merged and left out
# The vectors that the instruction takes, by their number of words.
_INSTRUCTIONS = {lanes: f"llvm.x86.avx512.vpdpbusd.{32 * lanes}" for lanes in (4, 8, 16)}
# LLVM changed the intrinsic's operands from words to bytes.
_OF_BYTES_SINCE = 22


def has_instruction(hardware: Hardware) -> bool:
    """Whether the CPU has ``vpdpbusd`` for vectors of 16, 32 and 64 bytes."""
    return {"avx512_vnni", "avx512vl", "avx512bw"} <= set(hardware.features)


def word_of(byte: Any) -> Any:
    """The int32 of four bytes, the first the lowest; ``byte(i)`` gives them as uint8."""
    return tirx.call_intrin("int32", _WORD, *(byte(i) for i in range(WORD)))


def lower_word(call: Any) -> Any:
    """Rule for a word: a vector of its bytes, which LLVM loads at once where they are neighbours.

    Said with shifts it loads them at once too, but forgets on the way that they are of another
    type than the accumulators, which then stay in memory (measured: a third of the speed).
    """
    return tirx.reinterpret("int32", tirx.Shuffle(list(call.args), list(range(WORD))))


def summed(x: Any, w: Any, axis: list[Any], hardware: Hardware) -> Any:
    """The sum over ``axis`` of the dot products of the words ``x`` and ``w``."""
    if has_instruction(hardware):
        return _SUM(tirx.call_intrin("int32", _PAIR, x, w), axis=axis)
    return te.sum(dot(x, w), axis=axis)


def dot(x: Any, w: Any) -> Any:
    """The dot product of two words, or of vectors of words, in int32 arithmetic."""
    _, _, lanes = str(x.ty.dtype).partition("x")

    def number(value: int) -> Any:
        one = tirx.const(value, "int32")
        return tirx.Broadcast(one, int(lanes)) if lanes else one

    total = None
    for i in range(WORD):
        unsigned = tirx.bitwise_and(tirx.shift_right(x, number(8 * i)), number(255))
        top = number(8 * (WORD - 1))
        signed = tirx.shift_right(tirx.shift_left(w, number(8 * (WORD - 1 - i))), top)
        product = unsigned * signed
        total = product if total is None else total + product
    return total


_SUM = te.comm_reducer(
    lambda total, pair: tirx.call_intrin("int32", _ACCUMULATE, total, pair),
    lambda dtype: tirx.const(0, dtype),
    name="sum_of_dot4",
)


def lower_accumulate(call: Any) -> Any:
    """Rule for the sum: the instruction where the vector has a width that it takes."""
    total, pair = call.args
    x, w = pair.args
    dtype = str(call.ty.dtype)
    lanes = int(dtype.partition("x")[2] or 1)
    if lanes not in _INSTRUCTIONS:
        return total + dot(x, w)
    if tvm.get_global_func("target.llvm_version_major")() >= _OF_BYTES_SINCE:
        x, w = (tirx.reinterpret(f"int8x{WORD * lanes}", v) for v in (x, w))
    return tirx.call_llvm_pure_intrin(dtype, _INSTRUCTIONS[lanes], total, x, w)


def register() -> None:
    """Tell TVM the operators and their rule; again and again does no harm."""
    known = {str(name) for name in tvm.ir._ffi_api.ListOpNames()}
    for name, arguments in ((_WORD, WORD), (_PAIR, 2), (_ACCUMULATE, 2)):
        if name in known:
            continue
        tvm.ir._ffi_api.RegisterOp(name, "four products of bytes")
        tvm.ir._ffi_api.OpSetNumInputs(tvm.ir.Op.get(name), arguments)
        tvm.ir.register_op_attr(name, "TVectorizable", True)
        tvm.ir.register_op_attr(name, "TCallEffectKind", _PURE)
        tvm.ir.register_op_attr(name, "TScriptPrinterName", name.removeprefix("tirx."))
    for name, rule in ((_WORD, lower_word), (_ACCUMULATE, lower_accumulate)):
        tirx.register_intrin_lowering(name, target="llvm", f=rule, level=99)


register()
