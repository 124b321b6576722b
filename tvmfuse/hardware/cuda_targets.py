"""From a GPU to its Hardware record: a named one, the one that is here, or one given as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tvmfuse.errors import OptionError, UnknownNameError
from tvmfuse.hardware.cpus import cpu_model
from tvmfuse.hardware.detect import detect_cpu
from tvmfuse.hardware.gpu import FoundGpu, GpuProbe
from tvmfuse.hardware.gpus import CAPABILITIES, GPUS, SERVER, Gpu, Host, capability_of, gpu_of
from tvmfuse.hardware.record import Hardware

ASSUMED = "t4"  # what `cuda` builds for where no GPU is found
JSON_KEYS = ("kind", "arch", "sms", "l2_cache_size_bytes", "host")
_HOST_KEYS = ("kind", "mcpu", "mtriple", "num-cores")
# fp32 lanes of one multiprocessor, for devices that are not in the table.
_LANES = {53: 128, 62: 128, 70: 64, 72: 64, 75: 64, 80: 64}
_LANES_SINCE_86 = 128


def gpu_hardware(text: str, gpu: Gpu, threads: int | None = None, assumed: str = "") -> Hardware:
    """Hardware record of a GPU, whose fields about a CPU are those of its host."""
    host = cpu_model(gpu.host.mcpu)
    cores = threads or gpu.host.cores
    target = {
        "kind": "cuda",
        "arch": gpu.arch,
        "max_threads_per_block": gpu.threads_per_block,
        "max_num_threads": gpu.threads_per_block,
        "thread_warp_size": gpu.warp,
        "max_shared_memory_per_block": gpu.shared_static_bytes,
        "registers_per_block": gpu.registers_per_block,
        "l2_cache_size_bytes": gpu.l2_bytes,
        "host": {
            "kind": "llvm",
            "mcpu": gpu.host.mcpu,
            "mtriple": gpu.host.mtriple,
            "num-cores": cores,
        },
    }
    return Hardware(
        name=text,
        key=f"cuda-{gpu.name}-{gpu.arch}",
        kind="cuda",
        target_json=target,
        features=tuple(sorted(host.implies)),
        cores=cores,
        vector_bytes=16,
        vector_registers=32 if host.arch == "aarch64" else 16,
        l1d_bytes=host.l1d_bytes,
        l2_bytes=host.l2_bytes,
        l3_bytes=host.l3_bytes,
        gpu=gpu,
        assumed=assumed,
    )


def this_gpu(text: str, probe: GpuProbe, threads: int | None = None) -> Hardware:
    """The first GPU that was found, or an assumed one, which the record says."""
    if not probe.gpus:
        return gpu_hardware(text, gpu_of(ASSUMED), threads, assumed=probe.reason)
    return gpu_hardware(text, record_of(probe.gpus[0]), threads)


def record_of(found: FoundGpu) -> Gpu:
    """The table's record of a GPU that is here; the driver's figures where the table has none."""
    host = _host_here()
    for gpu in sorted(GPUS.values(), key=lambda g: -len(g.title)):
        if gpu.cc == found.cc and gpu.title in found.name and found.figures.get("sms") == gpu.sms:
            return dataclasses.replace(gpu, host=host)
    figures = dict(found.figures)
    capability = CAPABILITIES.get(found.cc)
    optin_bytes = capability.shared_optin_kib * 1024 if capability else 48 * 1024
    clock_hz = figures.get("clock_khz", 0) * 1e3 or 1e9
    memory = 2 * figures.get("memory_clock_khz", 0) * 1e3 * figures.get("bus_bits", 0) / 8
    sms = figures.get("sms", 1)
    return Gpu(
        name=_slug(found.name),
        title=found.name,
        cc=found.cc,
        sms=sms,
        l2_bytes=figures.get("l2_bytes", 0) or 1 << 20,
        dram_bytes_per_s=memory or _likest(found.cc).dram_bytes_per_s,
        peak_flops=_peaks(found.cc, sms, clock_hz),
        launch_s=4e-6,
        host=host,
        shared_optin_bytes=figures.get("shared_optin_bytes", optin_bytes),
        shared_per_sm_bytes=figures.get("shared_per_sm_bytes", optin_bytes),
        registers_per_block=figures.get("registers_per_block", 32768),
        threads_per_sm=figures.get("threads_per_sm", 1024),
        blocks_per_sm=figures.get("blocks_per_sm", 16),
        arch=f"sm_{found.cc}{capability.suffix if capability else ''}",
        sources={"all": "the driver of the device; peaks from its clock, not from a data sheet"},
    )


def from_json(text: str, data: Mapping[str, Any], threads: int | None) -> Hardware:
    """A JSON target of kind cuda; raises OptionError for what cannot be honoured."""
    unknown = sorted(set(data) - set(JSON_KEYS))
    if unknown:
        raise OptionError(
            f"the JSON target has {', '.join(unknown)}, which cannot be honoured; "
            f"the keys of a cuda target are {', '.join(JSON_KEYS)}"
        )
    arch = data.get("arch")
    number = str(arch).removeprefix("sm_").rstrip("af")
    if not isinstance(arch, str) or not arch.startswith("sm_") or not number.isdigit():
        raise OptionError(
            f"a JSON target of kind cuda needs 'arch', e.g. \"sm_86\"; it says {arch!r}"
        )
    capability_of(int(number))
    base = _likest(int(number))
    if base.cc != int(number):
        raise OptionError(
            f"no device with arch {arch} is known; known are "
            + ", ".join(sorted({g.arch for g in GPUS.values()}))
        )
    sms = _positive(data, "sms", base.sms)
    gpu = dataclasses.replace(
        base,
        name=f"{sms}sms",
        title=arch,
        arch=arch,
        sms=sms,
        l2_bytes=_positive(data, "l2_cache_size_bytes", base.l2_bytes),
        peak_flops=MappingProxyType({d: p * sms / base.sms for d, p in base.peak_flops.items()}),
        host=_json_host(data.get("host"), base.host),
        sources=dict(base.sources) | {"peak": f"that of {base.name}, by the number of SMs"},
    )
    return gpu_hardware(text, gpu, threads)


def _positive(data: Mapping[str, Any], key: str, default: int) -> int:
    value = data.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise OptionError(f"{key} must be a positive integer, got {value!r}")
    return value


def _json_host(data: Any, default: Host) -> Host:
    if data is None:
        return default
    if not isinstance(data, dict) or data.get("kind") != "llvm" or set(data) - set(_HOST_KEYS):
        raise OptionError(
            'the host of a cuda target is {"kind": "llvm", "mcpu": NAME}, with mtriple and '
            f"num-cores if wanted; got {data!r}"
        )
    try:
        model = cpu_model(str(data.get("mcpu")))
    except UnknownNameError as error:
        raise OptionError(f"host of the cuda target: {error}") from None
    triple = str(data.get("mtriple", f"{model.arch}-linux-gnu"))
    if not triple.startswith(model.arch) or "linux" not in triple:
        raise OptionError(f"mtriple {triple!r} does not fit the host's mcpu {model.name!r}")
    return Host(model.name, triple, _positive(data, "num-cores", default.cores))


def _likest(cc: int) -> Gpu:
    """A device of the same, or the next smaller, compute capability."""
    fitting = [g for g in GPUS.values() if g.cc <= cc]
    return max(fitting, key=lambda g: g.cc, default=gpu_of("jetson-nano"))


def _peaks(cc: int, sms: int, clock_hz: float) -> Mapping[str, float]:
    """By lanes and clock; the tensor cores as in the likest device of the table."""
    base = _likest(cc)
    fp32 = sms * _LANES.get(cc, _LANES_SINCE_86) * 2 * clock_hz
    ratio = fp32 / base.peak_flops["float32"]
    return MappingProxyType({dtype: peak * ratio for dtype, peak in base.peak_flops.items()})


def _host_here() -> Host:
    cpu = detect_cpu()
    if cpu.arch == "aarch64":
        return Host("generic", "aarch64-linux-gnu", cpu.cores)
    return dataclasses.replace(SERVER, cores=cpu.cores)


def _slug(name: str) -> str:
    words = name.lower().replace("nvidia", "").replace("geforce", "").split()
    return "-".join("".join(c for c in word if c.isalnum() or c == ".") for word in words)
