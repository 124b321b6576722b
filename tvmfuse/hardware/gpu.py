"""Looking for a GPU, in a child: a driver that hangs or crashes must not take us along."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

_TIMEOUT_S = 10.0

# Runs in the child; prints one JSON object. CUresult codes are passed on as they are.
_PROBE = """
import ctypes, json
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
        major, minor = ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(name, 256, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        gpus.append("%s (sm_%d%d)" % (name.value.decode(), major.value, minor.value))
    return {"gpus": gpus, "reason": "" if gpus else "the NVIDIA driver sees no GPU"}
print(json.dumps(main()))
"""


@dataclass(frozen=True)
class GpuProbe:
    """What was found: names with compute capability, or the reason why there are none."""

    gpus: tuple[str, ...]
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
    except ValueError:
        return GpuProbe((), "the probing process gave no readable answer")
    return GpuProbe(tuple(answer.get("gpus", ())), answer["reason"])
