"""Products with few rows and a transposed operand: one dot product an element of the output.

    p[b, m, o, n] = Σ x[b, m, i·L + n] · z[b, o, i·L + n]     one vector of partial sums each
    y[b, m, o] = Σ p[b, m, o, n]                              in registers

Several outputs run together, so that their sums do not wait for one another.
"""

from __future__ import annotations

from typing import Any

from tvm import te
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base

FAMILY = "dot"
ACROSS = "across"  # name of the block that adds the lanes up
_TOGETHER = 8  # outputs that hide the latency of one another's additions


def dots(x: Any, z: Any, shape: tuple[int, ...], depth: int, lanes: int) -> te.Tensor:
    """The product ``y`` of the readers ``x(lead, m, k)`` and ``z(lead, o, k)``.

    Parameters
    ----------
    shape
        Of the result, (…lead, M, O).
    depth
        Length of a dot product, a multiple of ``lanes``.
    lanes
        Partial sums of each, a power of two from 2 on.
    """
    steps = te.reduce_axis((0, depth // lanes), "k")

    def partial(*at: Any) -> Any:
        *lead, m, o, n = at
        k = steps * lanes + n
        return te.sum(x(lead, m, k) * z(lead, o, k), axis=[steps])

    notes = {base.FAMILY: FAMILY}
    part = te.compute((*shape, lanes), partial, name="partial", attrs=notes)
    lane = te.reduce_axis((0, lanes), "n")
    return te.compute(shape, lambda *at: te.sum(part(*at, lane), axis=[lane]), name=ACROSS)


class DotTemplate:
    """Vectors of partial sums in registers, a few outputs at a time."""

    name = "cpu.dot"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        sch = base.new_schedule(func)
        anchor = base.find_family(base.blocks(sch), FAMILY)
        if anchor is None:
            return None
        base.inline_producers(sch, anchor.rv, keep=())
        across = sch.get_consumers(anchor.rv)[0]
        out = base.detach_output(sch, across)
        options = base.divisors(anchor.spatial[-2], _TOGETHER)
        *outer, channels = sch.get_loops(out)
        together = base.pick(sch, options, options[-1], tunable)
        groups, inner = sch.split(channels, [None, together])
        piece = sch.fuse(*outer, groups)
        sch.parallel(piece)
        sch.unroll(inner)
        sch.compute_at(across, piece, preserve_unit_loops=True)
        sch.set_scope(across, 0, "local")
        for loop in sch.get_loops(across)[1:]:
            sch.unroll(loop)
        sch.compute_at(anchor.rv, piece, preserve_unit_loops=True)
        sch.set_scope(anchor.rv, 0, "local")
        *spatial, steps = sch.get_loops(anchor.rv)[1:]
        sch.reorder(steps, *spatial)
        for loop in spatial[:-1]:
            sch.unroll(loop)
        sch.vectorize(spatial[-1])
        sch.decompose_reduction(anchor.rv, steps)
        return [sch]
