"""One model for ``gpu_zoo.py``, in a process of its own: built for every target, nothing run."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from tvm_ffi import structural_hash

from tvmfuse.build import Artifact, build
from tvmfuse.choose import Choice, choose_kernels
from tvmfuse.errors import TvmfuseError
from tvmfuse.frontend.import_model import import_model
from tvmfuse.fusion.rules.selection import select_rules
from tvmfuse.hardware import Hardware, resolve_target
from tvmfuse.passes.pipeline import lowering
from tvmfuse.passes.specialize import GroupKernel, kernel_name
from tvmfuse.settle import settle
from tvmfuse.workload import Workload


def built(workload: Workload, hardware: Hardware) -> Artifact:
    """Fuse and compile with templates alone."""
    return built_with_groups(workload, hardware)[0]


def built_with_groups(
    workload: Workload, hardware: Hardware
) -> tuple[Artifact, list[GroupKernel], dict[str, Choice]]:
    """The same, with what was chosen for every group."""
    rules = select_rules()
    low, _ = lowering(workload, hardware, rules.merging)
    settled = settle(low, hardware, rules)
    choices = choose_kernels(settled.groups, None, hardware)
    artifact = build(settled.fused, settled.groups, choices, hardware)
    return artifact, settled.groups, choices


def tensor_share(
    artifact: Artifact, groups: list[GroupKernel], choices: dict[str, Choice]
) -> float:
    """Share of the products' operations in kernels whose machine code uses tensor cores."""
    using = [k.name for k in artifact.usage if k.tensor_instructions]
    first: dict[int, str] = {}  # equal kernels have the name of the first group
    done = every = 0.0
    for group in groups:
        choice = choices[group.name]
        name = first.setdefault(structural_hash(choice.kernel), kernel_name(group.name))
        if group.variants:
            flops = group.variants[choice.variant].anchor.flops
            every += flops
            # Behind the group's name: where it is written to, and which launch it is.
            done += flops if any(u.startswith(f"{name}_") for u in using) else 0.0
    return done / every if every else 0.0


def figures(workload: Workload, target: str) -> dict[str, Any]:
    """What the kernels of one build take; or the message, where it cannot be built."""
    hardware = resolve_target(target)
    assert hardware.gpu is not None
    begin = time.perf_counter()
    try:
        artifact, groups, choices = built_with_groups(workload, hardware)
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
        "tensor_share": round(tensor_share(artifact, groups, choices), 4),
    }


def answer(name: str, targets: list[str], dtype: str = "float32") -> dict[str, Any]:
    """All builds of one model."""
    workload = import_model(name, weights="random")
    if dtype != "float32":
        signature = dataclasses.replace(workload.signature, computes=dtype)
        workload = dataclasses.replace(workload, signature=signature)
    return {"targets": {target: figures(workload, target) for target in targets}}
