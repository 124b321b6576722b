"""Roofline and register limits of a target: what the feasibility matrix compares with.

Every figure carries its source. Figures that nobody measured on the machine at hand say so: they
rank fusions, they predict no latency.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tvmfuse.hardware.gpus import Gpu, gpu_of
from tvmfuse.hardware.record import Hardware

# fp32 operations a cycle and core: FMA pipes x lanes x 2.
_FP32_PER_CYCLE = {
    "znver5": 64, "znver4": 32, "znver3": 32, "znver2": 32, "graniterapids": 64,
    "sapphirerapids": 64, "icelake-server": 64, "cooperlake": 64, "cascadelake": 64,
    "skylake-avx512": 64, "haswell": 32, "x86-64-v2": 8, "x86-64": 8, "neoverse-v2": 32,
    "neoverse-v1": 32, "neoverse-n1": 16, "cortex-a72": 8, "generic": 8,
}  # fmt: skip
_CLOCK_HZ = 2.5e9
_DRAM_BYTES_PER_CORE = 10e9
_DRAM_BYTES_MOST = 200e9
_CACHE_BYTES_PER_CYCLE = 32
_LAUNCH_S = 2e-6

# Element type -> (instruction flags, first that is there wins; operations against fp32).
_INSTRUCTIONS: dict[str, tuple[tuple[str, float], ...]] = {
    "float32": (("fma", 1.0), ("asimd", 1.0)),
    "float64": (("fma", 0.5), ("asimd", 0.5)),
    "float16": (("amx_fp16", 16.0), ("avx512_fp16", 2.0), ("asimdhp", 2.0), ("f16c", 1.0)),
    "bfloat16": (("amx_bf16", 16.0), ("avx512_bf16", 2.0), ("bf16", 2.0)),
    "int8": (
        ("amx_int8", 32.0), ("avx512_vnni", 4.0), ("avx_vnni", 4.0), ("i8mm", 4.0),
        ("asimddp", 4.0),
    ),
}  # fmt: skip

CPU_SOURCES = {
    "peak": "FMA pipes x lanes x 2 by micro-architecture (vendors' optimisation guides: Intel "
    "server AVX-512 64 a cycle, AVX2 and Zen 2 to 4 32), at an assumed clock of 2.5 GHz; "
    "not measured",
    "dram": "assumed 10 GB/s a core and at most 200 GB/s; not measured",
    "cache_speed": "assumed 32 bytes a cycle and core from L2; not measured",
    "cache": "L2 per core as the kernel reports it, or the vendor's for a named CPU",
    "registers": "number of vector registers of the instruction set",
    "launch": "calls of the virtual machine take 1 to 3 us; taken as 2",
}

_CACHE_FACTOR = 3.0  # L2 of a GPU against its DRAM
_GPU_ACCUMULATORS = 64  # of the 255 registers of a thread

GPU_SOURCES = {
    "cache_speed": "assumed three times DRAM; not measured",
    "cache": "L2 of the device",
    "shared": "opt-in limit of a block",
    "registers": "CUDA programming guide: at most 255 a thread",
}


@dataclass(frozen=True)
class Limits:
    """What one device can do, as the roofline needs it.

    Parameters
    ----------
    name
        The device.
    peak_flops
        Operations a second, by element type; types that are missing have no instruction.
    instructions
        Name of the instruction that computes each type.
    dram_bytes_per_s, cache_bytes_per_s
        Bandwidth of memory, and of the cache in which kernels hand over intermediates.
    cache_bytes
        That cache: L2 of all cores on a CPU, of the device on a GPU.
    tile_bytes
        What one tile of an intermediate may take: half the private cache, or shared memory.
    registers
        Vector registers of a core, or 32-bit registers of a thread.
    accumulators
        How many of them the tile of a product keeps.
    launch_s
        Cost of one kernel call.
    sources
        Where each figure is from.
    """

    name: str
    peak_flops: dict[str, float]
    instructions: dict[str, str]
    dram_bytes_per_s: float
    cache_bytes_per_s: float
    cache_bytes: int
    tile_bytes: int
    registers: int
    accumulators: int
    launch_s: float
    sources: dict[str, str] = field(default_factory=dict)

    def peak(self, dtype: str) -> float:
        """Operations a second in ``dtype``; in float32 for types without an instruction."""
        return self.peak_flops.get(dtype, self.peak_flops["float32"])

    def ridge(self, dtype: str) -> float:
        """Operations a byte from which a kernel is bound by computing, not by memory."""
        return self.peak(dtype) / self.dram_bytes_per_s


def limits_of(hardware: Hardware) -> Limits:
    """Limits of the device that ``hardware`` describes."""
    if hardware.gpu is not None:
        return limits_of_gpu(hardware.gpu)
    mcpu = str(hardware.target_json.get("mcpu", "generic"))
    per_second = _FP32_PER_CYCLE.get(mcpu, 8) * _CLOCK_HZ * hardware.cores
    found = {
        dtype: next(((i, f) for i, f in choices if i in hardware.features), None)
        for dtype, choices in _INSTRUCTIONS.items()
    }
    peaks = {dtype: per_second * hit[1] for dtype, hit in found.items() if hit}
    return Limits(
        name=hardware.key,
        peak_flops={"float32": per_second, **peaks},
        instructions={dtype: hit[0] for dtype, hit in found.items() if hit},
        dram_bytes_per_s=min(_DRAM_BYTES_PER_CORE * hardware.cores, _DRAM_BYTES_MOST),
        cache_bytes_per_s=_CACHE_BYTES_PER_CYCLE * _CLOCK_HZ * hardware.cores,
        cache_bytes=hardware.l2_bytes * hardware.cores,
        tile_bytes=hardware.l2_bytes // 2,
        registers=hardware.vector_registers,
        accumulators=hardware.vector_registers * 3 // 4,
        launch_s=_LAUNCH_S,
        sources=CPU_SOURCES,
    )


def limits_of_gpu(gpu: Gpu) -> Limits:
    """Limits of a GPU."""
    return Limits(
        name=gpu.name,
        peak_flops=dict(gpu.peak_flops),
        instructions=gpu.instructions(),
        dram_bytes_per_s=gpu.dram_bytes_per_s,
        cache_bytes_per_s=gpu.dram_bytes_per_s * _CACHE_FACTOR,
        cache_bytes=gpu.l2_bytes,
        tile_bytes=gpu.shared_optin_bytes,
        registers=gpu.max_registers_per_thread,
        accumulators=_GPU_ACCUMULATORS,
        launch_s=gpu.launch_s,
        sources={**gpu.sources, **GPU_SOURCES},
    )


def gpu_limits(name: str) -> Limits:
    """Limits of a GPU by name; raises UnknownNameError."""
    return limits_of_gpu(gpu_of(name))
