"""Building for a device that is not here: what is refused, what is said, what can be verified."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tvmfuse.build import Artifact, build
from tvmfuse.choose import Choice
from tvmfuse.config import CompileOptions
from tvmfuse.errors import DeviceError, OptionError
from tvmfuse.hardware import Hardware, detect_cpu, hardware_of, probe_gpus
from tvmfuse.hardware.gpus import Gpu
from tvmfuse.passes.specialize import GroupKernel
from tvmfuse.runtime import load
from tvmfuse.schedules.cpu.plain import plain_schedule
from tvmfuse.tuning.task import as_main, count_flops
from tvmfuse.verify import Metric, VerifyReport, verify
from tvmfuse.workload import Workload

NOT_RUN = (
    "the kernels were compiled for {device} and did NOT RUN on one; what was run and compared with "
    "eager PyTorch are the same fused operators over the same packed weights, in plain loops on "
    "this machine's CPU: it checks import, fusion, layouts and algorithms, not the GPU's schedules"
)
_KINDS = frozenset(("random",))  # plain loops are slow, and the kinds test schedules above all
_WIDTH = 78


def check_gpu_options(options: CompileOptions, hardware: Hardware) -> None:
    """Refuse what cannot be honoured for a GPU in this release.

    Raises
    ------
    DeviceError
        Something would have to be measured.
    OptionError
        Options do not go together with a GPU.
    """
    asked = [f"--trials {options.trials}"] if options.trials else []
    if options.time_budget_s is not None:
        asked.append(f"--time-budget {options.time_budget_s:g}")
    if options.measure == "local":
        asked.append("--measure local")
    if options.retune:
        asked.append("--retune")
    if asked:
        raise DeviceError(_cannot_measure(" and ".join(asked), hardware))
    if options.fallback != "none":
        raise OptionError(
            "--fallback eager runs parts of the model in PyTorch on the CPU, and a GPU's artifact "
            "holds all of it; drop one of --fallback and --target " + hardware.name
        )


def _cannot_measure(asked: str, hardware: Hardware) -> str:
    probe = probe_gpus()
    found = ", ".join(map(str, probe.gpus)) if probe.gpus else f"none was found: {probe.reason}"
    return (
        f"{asked} measures kernels on a GPU, which this release cannot do yet, neither on this "
        f"machine (its GPUs: {found}) nor by RPC; use --trials 0, which builds "
        f"{hardware.name} from the templates without measuring"
    )


def banner(hardware: Hardware) -> str:
    """What must not be missed of a build for a GPU; several lines."""
    assert hardware.gpu is not None
    device = f"{hardware.gpu.name} ({hardware.gpu.arch})"
    lines = [f"BUILT FOR {device}, NOT RUN: nothing was measured, all figures are estimated"]
    if hardware.assumed:
        lines = [
            f"NO GPU HERE ({hardware.assumed})",
            f"ASSUMED DEVICE: {device}",
            "Nothing was measured; all figures are estimated, and nothing ran on a GPU.",
            "Another device:  --target a100 | h100 | rtx-4090 | jetson-orin | ...",
            "To measure, run on a machine with the GPU; remote measuring (RPC) is not in",
            "this release.",
        ]
    bar = "*" * _WIDTH
    return "\n".join(["", bar, *(f"* {line}" for line in lines), bar])


def verify_on_cpu(
    fused: Workload,
    groups: list[GroupKernel],
    choices: dict[str, Choice],
    folder: Path,
    seed: int,
    metric: Metric | None,
) -> VerifyReport:
    """Run the chosen variants of all groups in plain loops on this CPU, and compare with eager.

    Parameters
    ----------
    folder
        Where the artifact for this CPU may be written.
    """
    cpu = hardware_of("llvm", detect_cpu())
    plain: dict[tuple[int, int], Any] = {}
    here: dict[str, Choice] = {}
    for group in groups:
        choice = choices[group.name]
        key = (id(group.kernels), choice.variant)
        if key not in plain:
            definition = group.kernels[choice.variant]
            plain[key] = plain_schedule(definition, cpu).mod["main"]
        here[group.name] = dataclasses.replace(choice, kernel=plain[key], origin="plain")
    build(fused, groups, here, cpu).save(folder, {})
    model = load(folder, threads=cpu.cores)
    return verify(model, fused, seed, metric=metric, only=_KINDS)


def verification_json(report: VerifyReport, hardware: Hardware) -> dict[str, Any]:
    """The report of a verification on this CPU, with what it does not say in words."""
    assert hardware.gpu is not None
    device = f"{hardware.gpu.name} ({hardware.gpu.arch})"
    return report.to_json() | {"device": "not run", "note": NOT_RUN.format(device=device)}


def estimated_ms(groups: list[GroupKernel], artifact: Artifact, gpu: Gpu) -> dict[str, Any]:
    """A lower bound of the latency by roofline; never a measurement.

    Operations at the peak of float32, or of the half that the products take, bytes of weights and
    intermediates at the bandwidth of the memory, the longer of the two, and every launch.
    """
    flops = sum(count_flops(as_main(group.kernels[0])) for group in groups)
    moved_bytes = sum(w.nbytes for w in artifact.weights) + artifact.footprint.moved_bytes
    computes = artifact.workload.signature.computes
    peak = max(gpu.peak_flops.get(computes, 0.0), gpu.peak("float32"))
    work_s = max(flops / peak, moved_bytes / gpu.dram_bytes_per_s)
    seconds = work_s + gpu.launch_s * artifact.calls
    return {"median": seconds * 1e3, "kind": "estimated, a lower bound by roofline"}


class NotServed:
    """Stands in for a model whose kernels are a GPU's: it can be saved, and not called."""

    def __init__(self, hardware: Hardware) -> None:
        self._name = hardware.name

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raise DeviceError."""
        raise DeviceError(
            f"the model was built for {self._name} and cannot be called here: this release builds "
            "GPU kernels and does not serve them yet; .save(dir) writes the artifact, and "
            "target='llvm' compiles for this CPU"
        )

    def __repr__(self) -> str:
        return f"<model built for {self._name}, not run>"
