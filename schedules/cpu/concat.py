"""Concatenation as one copy block an input, instead of one block full of conditions."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm.tirx import PrimFunc

_HEAD = """
@T.prim_func(private=True, s_tir=True)
def main({params}):
    T.func_attr({{"tirx.noalias": True, "op_pattern": 8}})
"""
_COPY = """
    for {loops} in T.grid({extents}):
        with T.sblock("concat_{i}"):
            {axes} = T.axis.remap("{kinds}", [{loops}])
            out[{dest}] = x{i}[{axes}]
"""


def concat(shapes: Sequence[tuple[int, ...]], axis: int, dtype: str) -> PrimFunc:
    """Kernel ``(x0, x1, …, out)`` that joins its inputs along ``axis``.

    Parameters
    ----------
    shapes
        Shape of each input; equal but for ``axis``.
    axis
        Joined axis, not negative.
    dtype
        Element type of all inputs.
    """
    joined = list(shapes[0])
    joined[axis] = sum(s[axis] for s in shapes)
    params = [f"x{i}: {_buffer(s, dtype)}" for i, s in enumerate(shapes)]
    text = _HEAD.format(params=", ".join([*params, f"out: {_buffer(joined, dtype)}"]))
    offset = 0
    for i, shape in enumerate(shapes):
        axes = [f"v{d}" for d in range(len(shape))]
        dest = [f"{a} + {offset}" if d == axis and offset else a for d, a in enumerate(axes)]
        text += _COPY.format(
            i=i,
            loops=", ".join(f"i{d}" for d in range(len(shape))),
            extents=", ".join(f"T.int64({e})" for e in shape),
            axes=", ".join(axes),
            kinds="S" * len(shape),
            dest=", ".join(dest),
        )
        offset += shape[axis]
    return tvm.script.from_source(text)


def _buffer(shape: Sequence[int], dtype: str) -> str:
    return f'T.Buffer(({", ".join(f"T.int64({e})" for e in shape)},), "{dtype}")'
