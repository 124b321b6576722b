"""What this machine's CPU can do, read from the kernel's files and nothing else."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tvmfuse.errors import DeviceError
from tvmfuse.hardware.tiles import without_unlent_tiles
from tvmfuse.verdict import YES, Verdict, no

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_ARCH_NAMES = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}
# Where the kernel names no caches (some virtual machines), the smallest of common parts.
_FALLBACK_BYTES = {"l1d": 32 * 1024, "l2": 256 * 1024, "l3": 0}


@dataclass(frozen=True)
class CpuInfo:
    """The CPU of this machine.

    Parameters
    ----------
    arch
        ``"x86_64"`` or ``"aarch64"``.
    vendor
        As the kernel names it, e.g. ``"AuthenticAMD"``; empty on Arm.
    flags
        Feature flags as Linux names them.
    cores
        CPUs this process may use: its affinity, capped by the container's quota.
    l1d_bytes, l2_bytes, l3_bytes
        Cache sizes; 0 for an L3 that is absent.
    """

    arch: str
    vendor: str
    flags: frozenset[str]
    cores: int
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int


def detect_cpu() -> CpuInfo:
    """Read this machine's CPU.

    Raises
    ------
    DeviceError
        On another system than Linux, on another architecture than x86-64 and AArch64, or when
        the kernel's files cannot be read; the message says what to pass instead.
    """
    system = platform.system()
    if system != "Linux":
        raise DeviceError(
            f"the CPU features of this machine cannot be read on {system}; name the CPU "
            "instead, e.g. --target llvm:haswell (see `tvmfuse tune --help`)"
        )
    arch = _ARCH_NAMES.get(platform.machine().lower())
    if arch is None:
        raise DeviceError(
            f"no support for {platform.machine()} CPUs yet (x86_64 and aarch64 have it); to "
            "build for another machine, name its CPU, e.g. --target llvm:haswell"
        )
    try:
        vendor, flags = parse_cpuinfo(_CPUINFO.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise DeviceError(
            f"{_CPUINFO} cannot be read ({error.strerror}); name the CPU instead, "
            "e.g. --target llvm:haswell"
        ) from error
    flags, caches = without_unlent_tiles(flags), read_caches(_CACHES)
    return CpuInfo(arch, vendor, flags, usable_cores(), caches["l1d"], caches["l2"], caches["l3"])


def parse_cpuinfo(text: str) -> tuple[str, frozenset[str]]:
    """Return vendor and flags of the first processor in the text of ``/proc/cpuinfo``."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    flags = fields.get("flags") or fields.get("features", "")
    return fields.get("vendor_id", ""), frozenset(flags.split())


def read_caches(folder: Path) -> dict[str, int]:
    """Sizes in bytes of ``l1d``, ``l2`` and ``l3`` from sysfs, or the least of common parts."""
    found: dict[str, int] = {}
    for index in sorted(folder.glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text().strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        if kind in ("Data", "Unified"):
            found["l1d" if level == "1" else f"l{level}"] = _parse_size(size)
    return {name: found.get(name) or least for name, least in _FALLBACK_BYTES.items()}


def _parse_size(text: str) -> int:
    digits = text.rstrip("KMG")
    unit = {"K": 1024, "M": 1024**2, "G": 1024**3}.get(text[len(digits) :], 1)
    return int(digits) * unit if digits.isdigit() else 0


def usable_cores() -> int:
    """CPUs this process may use: its affinity, capped by the container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota, period = _CPU_QUOTA.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no cgroup v2 here, or the quota is "max"
        return cores


def runnable_here(features: Iterable[str], cpu: CpuInfo | None = None) -> Verdict:
    """Say whether code that uses ``features`` runs on this CPU.

    Parameters
    ----------
    features
        Linux flags, as in ``Hardware.features``.
    cpu
        The CPU to look at; this machine's by default.

    Returns
    -------
    Verdict
        A refusal names all the missing flags; its culprit is the first of them.
    """
    cpu = detect_cpu() if cpu is None else cpu
    missing = sorted(set(features) - cpu.flags)
    if not missing:
        return YES
    return no(f"this {cpu.arch} CPU lacks {', '.join(missing)}", missing[0])
