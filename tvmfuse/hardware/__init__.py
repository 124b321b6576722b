"""What the machine, or the one named, can do: frozen records, made without TVM."""

from tvmfuse.hardware.cpus import cpu_names
from tvmfuse.hardware.detect import CpuInfo, detect_cpu, runnable_here, usable_cores
from tvmfuse.hardware.gpu import GpuProbe, probe_gpus
from tvmfuse.hardware.record import Hardware
from tvmfuse.hardware.targets import hardware_of, resolve_target, target_names

__all__ = [
    "CpuInfo",
    "GpuProbe",
    "Hardware",
    "cpu_names",
    "detect_cpu",
    "hardware_of",
    "probe_gpus",
    "resolve_target",
    "runnable_here",
    "target_names",
    "usable_cores",
]
