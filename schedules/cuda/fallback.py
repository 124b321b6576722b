"""The last template: takes every kernel, so that no loop is ever left outside of threads.

Block by block: element-wise producers are inlined; a sum stays with the thread that needs it where
each is needed once; a sum over many elements with few results is shared by the threads of a block;
independent elements go to threads. What none of that fits (sorting, scans, scattering, loops that
somebody wrote) is done in order by one thread: slow, and right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.hardware.gpus import Gpu
from tvmfuse.schedules import base
from tvmfuse.schedules.cuda.binding import (
    bind_serial,
    bind_spatial,
    gpu_of,
    is_bound,
    threads_for,
)

_REFUSALS = (ScheduleError, RuntimeError, ValueError)
_LONG = 128  # from so many terms on a block's threads share a sum, if there are few sums
_FEW_WARPS = 8  # sums are few where a multiprocessor would have less than so many warps of them


class FallbackTemplate:
    """See the module."""

    name = "cuda.fallback"

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None:
        """See :class:`tvmfuse.schedules.base.Template`."""
        gpu = gpu_of(hardware)
        sch = _inlined(base.new_schedule(func))
        for block in reversed(base.blocks(sch)):
            if not is_bound(sch, block.rv):
                sch = _scheduled(sch, block, gpu)
        return [sch]


def _tried(sch: Schedule, move: Callable[..., Any], **facts: Any) -> Schedule | None:
    """The schedule after a move; None, with the schedule as it was, where it cannot be made."""
    trial = sch.copy()
    try:
        move(trial, **facts)
    except _REFUSALS:
        return None
    return trial


def _inlined(sch: Schedule) -> Schedule:
    """Element-wise blocks that others read become part of their readers."""
    for block in base.blocks(sch):
        plain = set(block.kinds) <= {"S"} and not base.has_loops(sch, block.rv)
        if plain and sch.get_consumers(block.rv):
            sch = _tried(sch, Schedule.compute_inline, block=block.rv) or sch
    return sch


def _scheduled(sch: Schedule, block: base.Block, gpu: Gpu) -> Schedule:
    moves: list[Callable[[Schedule, base.Block, Gpu], Any]] = [_independent, _alone, _serial]
    if _is_long_sum(block, gpu):
        moves.insert(0, _shared_sum)
    if base.has_loops(sch, block.rv) or not set(block.kinds) <= {"S", "R"}:
        moves = moves[-1:]
    for move in moves:
        done = _tried(sch, move, block=block, gpu=gpu)
        if done is not None:
            return done
    return sch


def _is_long_sum(block: base.Block, gpu: Gpu) -> bool:
    sums, terms = math.prod(block.spatial), math.prod(block.reduction)
    return terms >= _LONG and sums < gpu.sms * gpu.warp * _FEW_WARPS


def _loops_by_kind(sch: Schedule, block: base.Block) -> tuple[list[Any], list[Any]]:
    """Spatial loops and those of the reduction; raises ValueError where they are not one each."""
    loops = sch.get_loops(block.rv)
    if len(loops) != len(block.kinds):
        raise ValueError(f"{block.name} has {len(loops)} loops for {len(block.kinds)} axes")
    pairs = list(zip(loops, block.kinds, strict=True))
    return [x for x, kind in pairs if kind == "S"], [x for x, kind in pairs if kind == "R"]


def _independent(sch: Schedule, block: base.Block, gpu: Gpu) -> None:
    """A thread for each element; what it sums, it sums itself."""
    _own_sums(sch, block, _alone(sch, block, gpu))


def _alone(sch: Schedule, block: base.Block, gpu: Gpu) -> Any:
    """A thread for each element, which gets sums of other blocks from memory; that loop."""
    spatial, reduction = _loops_by_kind(sch, block)
    if not spatial:
        spatial = [sch.add_unit_loop(reduction[0] if reduction else block.rv)]
    elif reduction:
        sch.reorder(*spatial, *reduction)
    thread = bind_spatial(sch, spatial, threads_for(math.prod(block.spatial), gpu))
    if reduction:
        sch.decompose_reduction(block.rv, reduction[0])
    return thread


def _own_sums(sch: Schedule, block: base.Block, thread: Any) -> None:
    """Sums of which every element needs one of its own are computed by its thread."""
    if "R" in block.kinds:
        return
    for producer in sch.get_producers(block.rv):
        facts = base.read_block(sch, producer)
        mine = math.prod(facts.spatial) == math.prod(block.spatial)
        if "R" not in facts.kinds or not mine or len(sch.get_consumers(producer)) != 1:
            continue
        if base.has_loops(sch, producer) or not set(facts.kinds) <= {"S", "R"}:
            continue
        depth = len(sch.get_loops(block.rv))
        sch.compute_at(producer, thread, preserve_unit_loops=True)
        for number in range(len(sch.get(producer).writes)):
            sch.set_scope(producer, number, "local")
        inner = sch.get_loops(producer)[depth:]
        steps = [x for x in inner if base.loop_extent(sch, x) != 1]
        sch.decompose_reduction(producer, steps[0] if steps else inner[-1])


def _serial(sch: Schedule, block: base.Block, gpu: Gpu) -> None:
    """One thread, in order."""
    bind_serial(sch, block.rv)


def _shared_sum(sch: Schedule, block: base.Block, gpu: Gpu) -> None:
    """The threads of a block share each sum and add up their parts."""
    spatial, reduction = _loops_by_kind(sch, block)
    if not spatial:
        spatial = [sch.add_unit_loop(reduction[0])]
    sch.reorder(*spatial, *reduction)
    sch.bind(sch.fuse(*spatial) if len(spatial) > 1 else spatial[0], "blockIdx.x")
    fused = sch.fuse(*reduction) if len(reduction) > 1 else reduction[0]
    width = 1 << min(8, (math.prod(block.reduction) - 1).bit_length())
    _, inner = sch.split(fused, [None, width])
    sch.bind(inner, "threadIdx.x")
