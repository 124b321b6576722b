"""GPUs as data: what each device holds and can do, with the source of every figure.

Limits that follow from the compute capability stand in one table, the rest in another; no device
has to be there to read either. Peaks are dense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tvmfuse.errors import OptionError, UnknownNameError

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True)
class Capability:
    """What every device of one compute capability has; see :class:`Gpu` for the meaning."""

    shared_optin_kib: int
    shared_per_sm_kib: int
    threads_per_sm: int
    blocks_per_sm: int
    registers_per_block: int = 65536
    suffix: str = ""


CAPABILITIES = {
    53: Capability(48, 64, 2048, 32, registers_per_block=32768),
    62: Capability(48, 64, 2048, 32, registers_per_block=32768),
    70: Capability(96, 96, 2048, 32),
    72: Capability(96, 96, 2048, 32),
    75: Capability(64, 64, 1024, 16),
    80: Capability(163, 164, 2048, 32),
    86: Capability(99, 100, 1536, 16),
    87: Capability(163, 164, 1536, 16),
    89: Capability(99, 100, 1536, 24),
    90: Capability(227, 228, 2048, 32, suffix="a"),
}


@dataclass(frozen=True)
class Host:
    """The CPU that drives a GPU: LLVM's name and triple, and its cores."""

    mcpu: str
    mtriple: str
    cores: int


SERVER = Host("x86-64-v2", "x86_64-linux-gnu", 4)
_ORIN_12 = Host("cortex-a78ae", "aarch64-linux-gnu", 12)
_ORIN_6 = Host("cortex-a78ae", "aarch64-linux-gnu", 6)
_XAVIER = Host("carmel", "aarch64-linux-gnu", 8)
_A57 = Host("cortex-a57", "aarch64-linux-gnu", 4)


@dataclass(frozen=True)
class Gpu:
    """One device.

    Parameters
    ----------
    name
        As ``--target`` names it, e.g. ``"a100-40"``.
    title
        As the driver names it, or the vendor.
    cc
        Compute capability, major times ten plus minor: 75.
    sms
        Streaming multiprocessors.
    l2_bytes
        L2 cache of the device.
    dram_bytes_per_s
        Bandwidth of its memory.
    peak_flops
        Operations a second by element type: ``float32`` on the CUDA cores, ``tfloat32``,
        ``float16``, ``bfloat16`` and ``int8`` on tensor cores where the device has them; types
        without an instruction are missing.
    launch_s
        Cost of one launch.
    host
        The CPU beside it.
    shared_optin_bytes, shared_per_sm_bytes
        Shared memory: most of one block as ``shared.dyn``, and all of one multiprocessor.
    registers_per_block
        32-bit registers that one block may have.
    threads_per_sm, blocks_per_sm
        What is resident on one multiprocessor, at most.
    arch
        ``sm_75``; ``sm_90a`` where code for the exact architecture is wanted.
    sources
        Where each figure is from.
    """

    name: str
    title: str
    cc: int
    sms: int
    l2_bytes: int
    dram_bytes_per_s: float
    peak_flops: Mapping[str, float]
    launch_s: float
    host: Host
    shared_optin_bytes: int
    shared_per_sm_bytes: int
    registers_per_block: int
    threads_per_sm: int
    blocks_per_sm: int
    arch: str
    sources: Mapping[str, str]
    registers_per_sm: int = 65536
    max_registers_per_thread: int = 255
    shared_static_bytes: int = 48 * KIB
    threads_per_block: int = 1024
    warp: int = 32

    def __post_init__(self) -> None:
        for field in ("sms", "l2_bytes", "dram_bytes_per_s", "threads_per_block"):
            if getattr(self, field) <= 0:
                raise ValueError(f"Gpu.{field} must be positive, got {getattr(self, field)}")

    def peak(self, dtype: str) -> float:
        """Operations a second in ``dtype``; in float32 for types without an instruction."""
        return self.peak_flops.get(dtype, self.peak_flops["float32"])

    @property
    def has_tensor_cores(self) -> bool:
        """Whether products of half precision have units of their own."""
        return self.cc >= 70

    def instructions(self) -> dict[str, str]:
        """Name of the instruction that computes each type."""
        tensor = "mma" if self.cc >= 80 else "wmma" if self.has_tensor_cores else "half2"
        names = {"float32": "fma", "float16": tensor, "bfloat16": "mma", "tfloat32": "mma"}
        names["int8"] = tensor if self.cc >= 72 else "dp4a"
        return {dtype: names[dtype] for dtype in self.peak_flops}


_SOURCES = {
    "capability": "shared memory, registers, threads and blocks by compute capability: NVIDIA's "
    "CUDA programming guide (technical specifications) and cccl's arch_traits.h",
    "sms": "public deviceQuery listings, or the vendor's data sheet",
    "peak": "vendor's data sheet, dense; tfloat32 is half of float16 where no sheet gives it",
    "dram": "vendor's data sheet",
    "l2": "public deviceQuery listings, or TVM's tag of the device",
    "launch": "assumed 4 us (8 on a Jetson) a launch without graphs; not measured",
    "host": "vendor's description of the module; a server's is taken as any x86-64 of the last "
    "ten years",
}
_RECALLED = "recalled from the vendor's documents, not checked against one: "


def _gpu(
    name: str,
    title: str,
    cc: int,
    sms: int,
    l2_kib: int,
    dram_gb_per_s: float,
    peaks_tera: Mapping[str, float],
    *,
    host: Host = SERVER,
    recalled: str = "",
) -> Gpu:
    capability = CAPABILITIES[cc]
    return Gpu(
        name=name,
        title=title,
        cc=cc,
        sms=sms,
        l2_bytes=l2_kib * KIB,
        dram_bytes_per_s=dram_gb_per_s * 1e9,
        peak_flops=MappingProxyType({dtype: tera * 1e12 for dtype, tera in peaks_tera.items()}),
        launch_s=4e-6 if host is SERVER else 8e-6,
        host=host,
        shared_optin_bytes=capability.shared_optin_kib * KIB,
        shared_per_sm_bytes=capability.shared_per_sm_kib * KIB,
        registers_per_block=capability.registers_per_block,
        threads_per_sm=capability.threads_per_sm,
        blocks_per_sm=capability.blocks_per_sm,
        arch=f"sm_{cc}{capability.suffix}",
        sources=_SOURCES | ({"recalled": _RECALLED + recalled} if recalled else {}),
    )


def _peaks(
    fp32: float, fp16: float, int8: float = 0, tf32: float = 0, bf16: bool = True
) -> dict[str, float]:
    """Tera-operations a second; 0 where there is no such instruction."""
    found = {"float32": fp32, "tfloat32": tf32, "float16": fp16, "int8": int8}
    return {d: p for d, p in (found | {"bfloat16": fp16 if bf16 else 0}).items() if p}


_A100 = _peaks(19.5, 312, 624, 156)
_HOPPER = _peaks(67, 989, 1979, 494.5)
_RECORDS = (
    _gpu("t4", "Tesla T4", 75, 40, 4096, 320, _peaks(8.1, 65, 130, bf16=False)),
    _gpu("a100-40", "NVIDIA A100-SXM4-40GB", 80, 108, 40960, 1555, _A100),
    _gpu("a100-80", "NVIDIA A100-SXM4-80GB", 80, 108, 40960, 2039, _A100),
    _gpu("h100", "NVIDIA H100 80GB HBM3", 90, 132, 51200, 3350, _HOPPER),
    _gpu("h200", "NVIDIA H200", 90, 132, 51200, 4800, _HOPPER,
         recalled="L2 (some listings show 60 MB)"),
    _gpu("l4", "NVIDIA L4", 89, 58, 49152, 300, _peaks(30.3, 121, 242, 60.5),
         recalled="SMs, L2"),
    _gpu("rtx-3090", "NVIDIA GeForce RTX 3090", 86, 82, 6144, 936, _peaks(35.6, 71, 284, 35.6),
         recalled="tfloat32"),
    _gpu("rtx-4090", "NVIDIA GeForce RTX 4090", 89, 128, 73728, 1008,
         _peaks(82.6, 165, 661, 82.6), recalled="tfloat32"),
    _gpu("jetson-nano", "NVIDIA Tegra X1", 53, 1, 256, 25.6, _peaks(0.236, 0.472, bf16=False),
         host=_A57),
    _gpu("jetson-tx2", "NVIDIA Tegra X2", 62, 2, 512, 59.7, _peaks(0.67, 1.33, bf16=False),
         host=_A57, recalled="that there is no int8 instruction; the two Denver cores beside the "
         "four Cortex-A57 are not counted"),
    _gpu("jetson-xavier", "Xavier", 72, 8, 512, 137, _peaks(1.41, 11, 22, bf16=False),
         host=_XAVIER, recalled="shared memory and blocks of compute capability 7.2"),
    _gpu("jetson-orin-nano", "Orin Nano", 87, 8, 2048, 68, _peaks(1.28, 10, 20, 5),
         host=_ORIN_6, recalled="L2, DRAM, int8, tfloat32"),
    _gpu("jetson-orin-agx", "Orin", 87, 16, 4096, 204.8, _peaks(5.3, 42.5, 85, 21.25),
         host=_ORIN_12, recalled="float16, int8, tfloat32, DRAM"),
)  # fmt: skip

GPUS = {gpu.name: gpu for gpu in _RECORDS}
# Short names of what is asked for most.
ALIASES = {"a100": "a100-40", "jetson-orin": "jetson-orin-agx"}


def gpu_names() -> tuple[str, ...]:
    """Every name of a GPU that ``--target`` takes."""
    return (*GPUS, *ALIASES)


def gpu_of(name: str) -> Gpu:
    """Look a device up by its name or alias; raises UnknownNameError."""
    known = name.strip().lower()
    gpu = GPUS.get(ALIASES.get(known, known))
    if gpu is None:
        raise UnknownNameError("GPU", name, gpu_names())
    return gpu


def capability_of(cc: int) -> Capability:
    """Limits of a compute capability; raises OptionError for one that is not in the table."""
    if cc not in CAPABILITIES:
        raise OptionError(
            f"no limits are known for compute capability {cc // 10}.{cc % 10}; known are "
            + ", ".join(f"sm_{known}" for known in CAPABILITIES)
        )
    return CAPABILITIES[cc]
