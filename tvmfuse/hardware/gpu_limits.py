"""Limits of GPUs as data, for comparing a plan with devices that need not be here.

Peaks are dense. ``cc`` is the compute capability, from which the instructions follow.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvmfuse.errors import UnknownNameError
from tvmfuse.hardware.limits import Limits

KIB, MIB = 1024, 1024 * 1024
_LAUNCH_S = 4e-6
_CACHE_FACTOR = 3.0  # L2 against DRAM
_REGISTERS = 255
_ACCUMULATORS = 64
# Opt-in shared memory of one block by compute capability.
_SHARED_KIB = {53: 48, 62: 48, 72: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227}

GPU_SOURCES = {
    "peak": "vendor's data sheet, dense",
    "dram": "vendor's data sheet",
    "cache_speed": "assumed three times DRAM; not measured",
    "cache": "deviceQuery, or TVM's tag of the device",
    "shared": "CUDA programming guide, opt-in limit of a block",
    "registers": "CUDA programming guide: at most 255 a thread",
    "launch": "assumed 4 us a launch without graphs; not measured",
}


@dataclass(frozen=True)
class Gpu:
    """One device: peaks in TFLOP/s and TOP/s, DRAM in GB/s; 0 where it has no such unit."""

    cc: int
    fp32: float
    fp16: float
    int8: float
    dram: float
    l2_bytes: int


GPUS = {
    "t4": Gpu(75, 8.1, 65, 130, 320, 4 * MIB),
    "a100": Gpu(80, 19.5, 312, 624, 1555, 40 * MIB),
    "h100": Gpu(90, 67, 989, 1979, 3350, 50 * MIB),
    "h200": Gpu(90, 67, 989, 1979, 4800, 50 * MIB),
    "rtx-3090": Gpu(86, 35.6, 71, 284, 936, 6 * MIB),
    "rtx-4090": Gpu(89, 82.6, 165, 661, 1008, 72 * MIB),
    "jetson-nano": Gpu(53, 0.236, 0.472, 0, 25.6, 256 * KIB),
    "jetson-tx2": Gpu(62, 0.67, 1.33, 0, 59.7, 512 * KIB),
    "jetson-xavier": Gpu(72, 1.41, 11, 22, 137, 512 * KIB),
    "jetson-orin": Gpu(87, 5.3, 42.5, 85, 204.8, 4 * MIB),
}


def gpu_limits(name: str) -> Limits:
    """Limits of a GPU by name; raises UnknownNameError."""
    gpu = GPUS.get(name.lower())
    if gpu is None:
        raise UnknownNameError("GPU", name, GPUS)
    instructions = {"float32": "fma", "float16": "half2" if gpu.cc < 70 else "wmma"}
    peaks = {"float32": gpu.fp32 * 1e12, "float16": gpu.fp16 * 1e12}
    if gpu.cc >= 80:
        instructions["bfloat16"] = "mma"
        peaks["bfloat16"] = peaks["float16"]
    if gpu.int8:
        instructions["int8"] = "wmma" if gpu.cc >= 72 else "dp4a"
        peaks["int8"] = gpu.int8 * 1e12
    return Limits(
        name=name.lower(),
        peak_flops=peaks,
        instructions=instructions,
        dram_bytes_per_s=gpu.dram * 1e9,
        cache_bytes_per_s=gpu.dram * 1e9 * _CACHE_FACTOR,
        cache_bytes=gpu.l2_bytes,
        tile_bytes=_SHARED_KIB[gpu.cc] * KIB,
        registers=_REGISTERS,
        accumulators=_ACCUMULATORS,
        launch_s=_LAUNCH_S,
        sources=GPU_SOURCES,
    )
