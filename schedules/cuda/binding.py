"""The moves that give loops to blocks and threads, and the check that the result can launch."""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir import transform as passes
from tvm.tirx import For, PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.hardware.gpus import Gpu
from tvmfuse.schedules import base
from tvmfuse.verdict import YES, Verdict, no

THREADS = 256  # of a block whose work needs nothing shared
_SIZES = (32, 64, 96, 128, 192, 256)  # of blocks for rows
_WARPS_TO_FILL = 8  # warps a multiprocessor needs at least before blocks may be larger
_SCOPES = {"shared": "static", "shared.dyn": "dynamic", "local": "local"}


def gpu_of(hardware: Hardware) -> Gpu:
    """The device of a record of kind cuda."""
    if hardware.gpu is None:
        raise ValueError(f"{hardware.name} is no GPU")
    return hardware.gpu


def threads_for(total: int, gpu: Gpu) -> int:
    """Threads a block for ``total`` independent elements: smaller where SMs would stay idle."""
    threads = THREADS
    while threads > gpu.warp and math.ceil(total / threads) < gpu.sms * _WARPS_TO_FILL // 4:
        threads //= 2
    return threads


def bind_spatial(sch: Schedule, loops: list[Any], threads: int) -> Any:
    """Give independent loops to ``blockIdx.x`` and ``threadIdx.x``; returns the latter."""
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    total = base.loop_extent(sch, fused)
    width = min(threads, total) if total > 0 else threads
    outer, inner = sch.split(fused, [None, width])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")
    return inner


def bind_rows(sch: Schedule, rows: list[Any], columns: list[Any], before: Any) -> Any:
    """A block for each row and a part of its columns, a thread for each column.

    Indices of rows are then those of blocks, and TVM's arithmetic need not see through a division
    of their sum: it does not, where the threads of a block span several rows of odd length.
    """
    row = sch.fuse(*rows) if len(rows) > 1 else (rows or [sch.add_unit_loop(before)])[0]
    column = sch.fuse(*columns) if len(columns) > 1 else columns[0]
    sch.bind(row, "blockIdx.x")
    extent = base.loop_extent(sch, column)
    if extent <= _SIZES[-1]:
        sch.bind(column, "threadIdx.x")
        return column
    outer, thread = sch.split(column, [None, threads_of(extent)])
    sch.bind(outer, "blockIdx.y")
    sch.bind(thread, "threadIdx.x")
    return thread


def threads_of(columns: int) -> int:
    """Threads a block that leave fewest idle behind the last of ``columns``; the most of those."""
    return min(_SIZES, key=lambda size: (math.ceil(columns / size) * size, -size))


def bind_serial(sch: Schedule, block: Any) -> None:
    """One thread runs the whole nest around ``block`` in order: right for whatever it is."""
    loops = sch.get_loops(block)
    target = loops[0] if loops else block
    thread = sch.add_unit_loop(target)
    sch.bind(thread, "threadIdx.x")
    sch.bind(sch.add_unit_loop(thread), "blockIdx.x")


def is_bound(sch: Schedule, block: Any) -> bool:
    """Whether some loop around a block is a thread's."""
    return any("threadIdx" in _thread(sch.get(loop)) for loop in sch.get_loops(block))


def _thread(loop: For) -> str:
    return "" if loop.thread_binding is None else str(loop.thread_binding.thread_tag)


def launches(func: PrimFunc, gpu: Gpu) -> Verdict:
    """Whether every kernel of a scheduled function is within the device's limits.

    Looked at are threads a block, shared memory (static and dynamic), registers that local arrays
    would take, and whether every block of the function is inside threads at all.
    """
    module = _COMPACTED(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    root = module["main"].body.block
    for nest in _statements(root.body):
        verdict = _nest(nest, gpu)
        if not verdict:
            return verdict
    return YES


# As TVM lowers a schedule, up to where buffers have the size that one block, or thread, needs.
_COMPACTED = tvm.transform.Sequential(
    [
        passes.LowerCrossThreadReduction(),
        passes.LowerInitBlock(),
        passes.PlanAndUpdateBufferAllocationLocation(),
        passes.ConvertBlocksToOpaque(),
        passes.UnifyThreadBinding(),
        passes.CompactBufferAllocation(),
    ]
)


def _statements(body: Any) -> list[Any]:
    return list(body.seq) if isinstance(body, tvm.tirx.SeqStmt) else [body]


def _nest(nest: Any, gpu: Gpu) -> Verdict:
    extents: dict[str, int] = {}
    taken = dict.fromkeys(_SCOPES.values(), 0)

    def see(node: Any) -> None:
        if isinstance(node, For):
            tag = _thread(node)
            if tag:
                extents[tag] = max(extents.get(tag, 1), base.as_int(node.extent))
            return
        for buffer in node.alloc_buffers:
            kind = _SCOPES.get(str(buffer.scope()))
            if kind:
                taken[kind] += _bytes(buffer)

    tvm_ffi.structural_walk(nest, [(For, see), (SBlock, see)])
    threads = math.prod(e for tag, e in extents.items() if tag.startswith("threadIdx"))
    if not any(tag.startswith("threadIdx") for tag in extents):
        return no("a block is outside of all threads")
    if threads > gpu.threads_per_block:
        return no(f"{threads} threads a block, the limit is {gpu.threads_per_block}")
    if taken["static"] > gpu.shared_static_bytes:
        return no(f"{taken['static']} bytes of static shared memory, the limit is 48 KiB")
    if taken["static"] + taken["dynamic"] > gpu.shared_optin_bytes:
        asked = taken["static"] + taken["dynamic"]
        return no(f"{asked} bytes of shared memory, the limit is {gpu.shared_optin_bytes}")
    words = taken["local"] // 4
    if words * threads > gpu.registers_per_block or words > gpu.max_registers_per_thread:
        return no(f"{words} registers a thread for local arrays alone, with {threads} threads")
    return YES


def _bytes(buffer: Any) -> int:
    extents = [base.as_int(e) for e in buffer.shape]
    bits = tvm.DataType(str(buffer.dtype)).bits
    return math.prod(extents) * max(8, bits) // 8 if min(extents, default=1) > 0 else 0
