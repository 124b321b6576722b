"""Looking for a GPU, in a child: a driver that hangs or crashes must not take us along."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TIMEOUT_S = 10.0

# Runs in the child; prints one JSON object. CUresult codes are passed on as they are. The numbers
# are those of CUdevice_attribute.
_PROBE = """
import ctypes, json
ATTRIBUTES = {"major": 75, "minor": 76, "sms": 16, "l2_bytes": 38, "clock_khz": 13,
              "memory_clock_khz": 36, "bus_bits": 37, "shared_optin_bytes": 97,
              "shared_per_sm_bytes": 81, "registers_per_block": 12, "registers_per_sm": 82,
              "threads_per_sm": 39, "blocks_per_sm": 106}
def main():
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"reason": "no NVIDIA driver is installed (libcuda.so.1 is missing)"}
    code = cuda.cuInit(0)
    if code:
        return {"reason": "the NVIDIA driver finds no usable GPU (cuInit returned %d)" % code}
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    gpus = []
    for index in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(name, 256, device)
        found = {"name": name.value.decode()}
        for key, number in ATTRIBUTES.items():
            value = ctypes.c_int()
            if not cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device):
                found[key] = value.value
        gpus.append(found)
    return {"gpus": gpus, "reason": "" if gpus else "the NVIDIA driver sees no GPU"}
print(json.dumps(main()))
"""


@dataclass(frozen=True)
class FoundGpu:
    """A GPU as its driver describes it.

    Parameters
    ----------
    name
        The driver's name, e.g. ``"Tesla T4"``.
    cc
        Compute capability, major times ten plus minor.
    figures
        What else the driver said, by the names of :class:`tvmfuse.hardware.gpus.Gpu`, and
        ``clock_khz``, ``memory_clock_khz``, ``bus_bits``.
    """

    name: str
    cc: int
    figures: Mapping[str, int]

    def __str__(self) -> str:
        return f"{self.name} (sm_{self.cc})"


@dataclass(frozen=True)
class GpuProbe:
    """What was found: the GPUs, or the reason why there are none."""

    gpus: tuple[FoundGpu, ...]
    reason: str = ""


def probe_gpus(timeout_s: float = _TIMEOUT_S, code: str = _PROBE) -> GpuProbe:
    """Ask the NVIDIA driver for its GPUs, in a child process; never raises."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return GpuProbe((), f"the NVIDIA driver did not answer within {timeout_s:g} s")
    except OSError as error:
        return GpuProbe((), f"the probing process could not be started ({error})")
    if done.returncode:
        return GpuProbe((), f"the probing process ended with code {done.returncode}")
    try:
        answer = json.loads(done.stdout)
        return GpuProbe(tuple(map(_found, answer.get("gpus", ()))), answer["reason"])
    except (ValueError, KeyError, TypeError):
        return GpuProbe((), "the probing process gave no readable answer")


def _found(said: dict[str, Any]) -> FoundGpu:
    figures = {k: int(v) for k, v in said.items() if k not in ("name", "major", "minor")}
    return FoundGpu(str(said["name"]), 10 * int(said["major"]) + int(said["minor"]), figures)
