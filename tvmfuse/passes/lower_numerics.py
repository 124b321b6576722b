"""Lower layer norm so that a large offset costs no digits.

A serial float32 sum of inputs near 80000 leaves a mean that is wrong by a few percent
of the spread. Here each row is shifted by its first element before its mean and variance are taken,
which changes neither result and keeps the sums small.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx

from tvmfuse.passes.relax_tools import dtype_of, ints, shape_of, stock


def _layer_norm(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    shape = shape_of(call)
    rank = len(shape or ())
    axes = sorted(a % rank for a in ints(call.attrs.axes)) if rank else []
    trailing = axes == list(range(rank - len(axes), rank))
    if shape is None or not trailing or dtype_of(call) != "float32":
        return stock("relax.nn.layer_norm")(bb, call)
    n_rows, epsilon = rank - len(axes), float(call.attrs.epsilon)
    count = math.prod(shape[n_rows:])

    def compute(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
        rows, inner = shape[:n_rows], shape[n_rows:]

        def loops(name: str) -> list[Any]:
            return [te.reduce_axis((0, extent), f"{name}{d}") for d, extent in enumerate(inner)]

        k, q = loops("k"), loops("q")
        origin = (0,) * len(inner)

        def shifted(r: Any, i: Any) -> Any:
            return x(*r, *i) - x(*r, *origin)

        total = te.compute(rows, lambda *r: te.sum(shifted(r, k), axis=k), "total")

        def centred(r: Any, i: Any) -> Any:
            return shifted(r, i) - total(*r) * tirx.const(1.0 / count, "float32")

        spread = te.compute(
            rows, lambda *r: te.sum(centred(r, q) * centred(r, q), axis=q), "spread"
        )

        def body(*at: Any) -> Any:
            r, i = at[:n_rows], at[n_rows:]
            variance = spread(*r) * tirx.const(1.0 / count, "float32")
            scale = tirx.rsqrt(variance + tirx.const(epsilon, "float32"))
            return centred(r, i) * scale * gamma(*i) + beta(*i)

        return te.compute(shape, body, "layer_norm")

    return bb.call_te(compute, *call.args, primfunc_name_hint="layer_norm")


def legalize_map() -> dict[str, Any]:
    """Custom legalisations for ``relax.transform.LegalizeOps``."""
    return {"relax.nn.layer_norm": _layer_norm}
