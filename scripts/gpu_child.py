"""One model for ``gpu_zoo.py``, in a process of its own: built for every target, nothing run."""

from __future__ import annotations

import time
from typing import Any

from tvmfuse.build import Artifact, build
from tvmfuse.choose import choose_kernels
from tvmfuse.errors import TvmfuseError
from tvmfuse.frontend.import_model import import_model
from tvmfuse.fusion.rules.selection import select_rules
from tvmfuse.hardware import Hardware, resolve_target
from tvmfuse.passes.pipeline import lowering
from tvmfuse.settle import settle
from tvmfuse.workload import Workload


def built(workload: Workload, hardware: Hardware) -> Artifact:
    """Fuse and compile with templates alone."""
    rules = select_rules()
    low, _ = lowering(workload, hardware, rules.merging)
    settled = settle(low, hardware, rules)
    choices = choose_kernels(settled.groups, None, hardware)
    return build(settled.fused, settled.groups, choices, hardware)


def figures(workload: Workload, target: str) -> dict[str, Any]:
    """What the kernels of one build take; or the message, where it cannot be built."""
    hardware = resolve_target(target)
    assert hardware.gpu is not None
    begin = time.perf_counter()
    try:
        artifact = built(workload, hardware)
    except TvmfuseError as error:
        return {"failed": " ".join(str(error).split())[:500]}
    usage = artifact.usage
    return {
        "arch": hardware.gpu.arch,
        "seconds": round(time.perf_counter() - begin, 1),
        "calls": artifact.calls,
        "device_kernels": len(usage),
        "registers": max((k.registers for k in usage), default=0),
        "shared_bytes": max((k.shared_bytes for k in usage), default=0),
        "spilling": sum(k.spill_bytes > 0 for k in usage),
    }


def answer(name: str, targets: list[str]) -> dict[str, Any]:
    """All builds of one model."""
    workload = import_model(name, weights="random")
    return {"targets": {target: figures(workload, target) for target in targets}}
