"""Reductions on a GPU: softmax, layer, group and RMS norm, means, global pooling.

Where the terms of a sum lie side by side, a warp takes a row, or the threads of a block where rows
are long and few. Where the results do (the mean of an image with channels last), neighbouring
threads take neighbouring results and the terms are shared by the warps of a block. All steps of a
chain, the sums, what depends on them, and the results, run in one kernel: sums stay in registers,
and a row that is read again comes from L1. The order of additions is fixed by the sizes alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.hardware.gpus import Gpu
from tvmfuse.schedules import base
from tvmfuse.schedules.cuda.binding import gpu_of
from tvmfuse.schedules.cuda.layout import innermost

_SHORT = 16  # sums of fewer terms leave more than half of a warp idle: a thread each is as good
_TERMS = 8  # terms of a thread below which a sum gets no more threads
_BLOCK = 256  # threads of a block
_FILL = 16  # warps on a multiprocessor with which sums need no more threads


@dataclass(frozen=True)
class Shares:
    """Threads that share one sum, sums of a block, and the thread axes of both."""

    threads: int
    sums: int
    terms_axis: str
    sums_axis: str


class ReductionTemplate:
    """Takes chains of reductions with the same results, and what is computed of them."""

    name = "cuda.reduction"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        sch = base.new_schedule(func)
        found = base.blocks(sch)
        sums = [b for b in found if "R" in b.kinds]
        if not sums or not all(base.is_plain(sch, b) for b in found):
            return None
        if any(b.kinds.lstrip("S").strip("R") for b in sums):
            return None
        results = sums[0].spatial
        if any(b.spatial != results for b in sums) or found[-1].spatial[: len(results)] != results:
            return None
        terms = max(math.prod(b.reduction) for b in sums)
        shares = self._shares(sch, sums, terms, gpu_of(hardware))
        return None if shares is None else [_schedule(sch, sums, shares)]

    @staticmethod
    def _shares(sch: Schedule, sums: list[base.Block], terms: int, gpu: Gpu) -> Shares | None:
        if terms < _SHORT:
            return None
        results = math.prod(sums[0].spatial)
        orders = [innermost(sch, b) for b in sums]
        if any(order == {"R"} for order in orders):
            return by_rows(results, terms, gpu)
        if results >= gpu.sms * gpu.warp * _FILL:
            return None  # a thread each keeps the device busy
        return by_columns(results, terms, gpu)


def by_rows(rows: int, terms: int, gpu: Gpu) -> Shares:
    """Warps, or blocks, along the terms."""
    width, together = gpu.warp, 1
    enough = gpu.sms * _FILL
    while width < _BLOCK and terms > 2 * width * _TERMS and rows * (width // gpu.warp) < enough:
        width *= 2
    while width == gpu.warp and 2 * together * width <= _BLOCK and rows >= 2 * together * gpu.sms:
        together *= 2
    return Shares(width, together, "threadIdx.x", "threadIdx.y")


def by_columns(results: int, terms: int, gpu: Gpu) -> Shares:
    """A warp along the results, warps of the block along the terms."""
    rows = 1
    while rows < gpu.warp and rows * gpu.warp < 2 * _BLOCK and terms > rows * 2:
        rows *= 2
    return Shares(rows, gpu.warp, "threadIdx.y", "threadIdx.x")


def _schedule(sch: Schedule, sums: list[base.Block], shares: Shares) -> Schedule:
    count = len(sums[0].spatial)
    out = base.blocks(sch)[-1]
    last = sch.cache_write(out.rv, 0, "global") if "R" in out.kinds else out.rv
    for block in base.blocks(sch):
        if "R" not in block.kinds and sch.get_consumers(block.rv):
            sch.compute_inline(block.rv)
    loops = sch.get_loops(last)
    row = _fused(sch, loops[:count], loops[count] if loops[count:] else last)
    # Results that are one a sum are written by one of its threads.
    column = _fused(sch, loops[count:], last)
    block_of, mine = sch.split(row, [None, shares.sums])
    sch.bind(block_of, "blockIdx.x")
    sch.bind(mine, shares.sums_axis)
    sch.bind(sch.split(column, [None, shares.threads])[1], shares.terms_axis)
    for block in reversed(sums):
        sch.compute_at(block.rv, mine, preserve_unit_loops=True)
        terms = sch.get_loops(block.rv)[-len(block.reduction) :]
        fused = sch.fuse(*terms) if len(terms) > 1 else terms[0]
        sch.bind(sch.split(fused, [None, shares.threads])[1], shares.terms_axis)
        for number in range(len(sch.get(block.rv).writes)):
            sch.set_scope(block.rv, number, "local")
    return sch


def _fused(sch: Schedule, loops: list[Any], before: Any) -> Any:
    """The loops as one; one of extent 1 where there are none."""
    if not loops:
        return sch.add_unit_loop(before)
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]
