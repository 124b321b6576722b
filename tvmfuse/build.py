"""Build: pick a schedule for every kernel, pack the weights, compile, and write the artifact."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from tvmfuse.choose import Choice
from tvmfuse.codegen import CudaCompiler, KernelUsage
from tvmfuse.codegen.linker import linker_for
from tvmfuse.errors import BuildError
from tvmfuse.graph import bindings, op_name
from tvmfuse.hardware import Hardware
from tvmfuse.passes.footprint import Footprint, footprint
from tvmfuse.passes.join_parts import join_parts
from tvmfuse.passes.lift_weights import lift_weights
from tvmfuse.passes.overwrite import overwrite
from tvmfuse.passes.pipeline import to_executable_form
from tvmfuse.passes.specialize import GroupKernel, specialize
from tvmfuse.passes.write_in_place import write_in_place
from tvmfuse.runtime.manifest import OFFLINE, Manifest
from tvmfuse.runtime.write import save_artifact
from tvmfuse.schedules import default_schedule
from tvmfuse.schedules.cpu.amx import with_tile_instructions
from tvmfuse.schedules.cuda.fragments import pass_config
from tvmfuse.workload import Workload


@dataclass(frozen=True)
class Artifact:
    """A compiled model that is not on disk yet.

    Parameters
    ----------
    executable
        The compiled Relax VM executable.
    weights
        Packed weights in the order of ``main``'s last argument.
    workload
        What was compiled.
    hardware
        What for.
    kernels
        Distinct compiled kernels.
    calls
        Kernel launches of one inference.
    footprint
        What one inference moves and allocates.
    layers
        See :class:`tvmfuse.runtime.manifest.Manifest`.
    usage
        Resources of the kernels as a GPU's assembler gives them; empty for a CPU.
    """

    executable: Any
    weights: tuple[np.ndarray, ...]
    workload: Workload
    hardware: Hardware
    kernels: int
    calls: int
    footprint: Footprint
    layers: tuple[tuple[str, str], ...] = ()
    usage: tuple[KernelUsage, ...] = ()

    def save(self, directory: Path, provenance: dict[str, Any]) -> Manifest:
        """Write the artifact folder; raises ArtifactError, and then leaves nothing behind."""
        manifest = Manifest(
            signature=self.workload.signature,
            target_key=self.hardware.key,
            target_json=self.hardware.target_json,
            features=self.hardware.features,
            versions={
                "tvm": metadata.version("apache-tvm"),
                "tvm_ffi": metadata.version("apache-tvm-ffi"),
                "tvmfuse": metadata.version("tvmfuse"),
            },
            provenance=provenance,
            kernels=self.kernels,
            layers=self.layers,
            states=tuple(state.name for state in self.workload.states),
            bounds=self.workload.bounds,
            checks=self.workload.checks,
            gpu=self.gpu_json(),
        )
        runtime = Path(tvm.__file__).parent / "lib" / "libtvm_runtime.so"
        names = {f"w{i:04d}": array for i, array in enumerate(self.weights)}
        states = {
            state.name: tvm.runtime.from_dlpack(state.value.contiguous()).numpy()
            for state in self.workload.states
        }
        with tempfile.TemporaryDirectory(prefix="tvmfuse-") as scratch:
            library = Path(scratch) / "model.so"
            self._export(library)
            return save_artifact(
                directory,
                library=library,
                weights=names,
                states=states,
                manifest=manifest,
                runtime_library=runtime,
            )

    def gpu_json(self) -> dict[str, Any]:
        """What the manifest and the report say of a GPU's kernels; empty for a CPU."""
        gpu = self.hardware.gpu
        if gpu is None:
            return {}
        return {
            "name": gpu.name,
            "arch": gpu.arch,
            "cc": gpu.cc,
            "state": OFFLINE,
            "assumed": self.hardware.assumed,
            "kernels": [usage.to_json() for usage in self.usage],
        }

    def _export(self, library: Path) -> None:
        host = self.hardware.target_json.get("host", self.hardware.target_json)
        linker = linker_for(host["mtriple"])
        try:
            self.executable.export_library(str(library), fcompile=linker)
        except (OSError, RuntimeError) as error:
            raise BuildError(
                f"cannot link the compiled kernels into {library.name}: {error}; a C++ compiler "
                "(g++, or the one that CXX names) is needed where models are compiled"
            ) from error


def build(
    fused: Workload,
    groups: list[GroupKernel],
    choices: dict[str, Choice],
    hardware: Hardware,
) -> Artifact:
    """Compile a fused workload with the chosen kernels.

    Raises
    ------
    BuildError
        TVM cannot compile it; the message holds TVM's own.
    """
    module = specialize(
        fused.module, groups, lambda g: (choices[g.name].variant, choices[g.name].kernel)
    )
    module = write_in_place(_schedule_rest(module, choices, hardware), fused.in_place)
    module = join_parts(module, fused.beside)
    module = overwrite(module, fused.overwritten)
    layers = tuple(_layers(module, fused.origins))
    module, weights = lift_weights(module)
    kernels = sum(isinstance(f, PrimFunc) for f in module.functions.values())
    try:
        executable, lowered, usage = _compiled(module, hardware)
    except (RuntimeError, ValueError, TypeError) as error:
        raise BuildError(f"TVM cannot compile {fused.name} for {hardware.name}: {error}") from error
    moved = footprint(lowered)
    return Artifact(
        executable, tuple(weights), fused, hardware, kernels, moved.kernels, moved, layers, usage
    )


def _compiled(
    module: tvm.IRModule, hardware: Hardware
) -> tuple[Any, tvm.IRModule, tuple[KernelUsage, ...]]:
    """The executable, the module it was made of, and what a GPU's kernels take."""
    target = tvm.target.Target(hardware.target_json)
    nothing_more = tvm.transform.Sequential([])
    with target:
        lowered = to_executable_form(module)
        if hardware.gpu is None:
            lowered = with_tile_instructions(lowered)
            return relax.build(lowered, target, relax_pipeline=nothing_more), lowered, ()
        context = tvm.transform.PassContext(config=pass_config(lowered.functions.values()))
        with CudaCompiler(hardware).installed() as compiler, context:
            executable = relax.build(lowered, target, relax_pipeline=nothing_more)
        return executable, lowered, compiler.kernels


def _layers(module: tvm.IRModule, origins: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Kernel and origin of every kernel call of ``main``."""
    for binding in bindings(module["main"]):
        if op_name(binding.value) in ("relax.call_tir", "relax.call_tir_inplace"):
            yield str(binding.value.args[0].name_hint), origins.get(str(binding.var.name), "")


def _schedule_rest(
    module: tvm.IRModule, choices: dict[str, Choice], hardware: Hardware
) -> tvm.IRModule:
    """Schedule the kernels outside of all groups (those that return several tensors)."""
    done = [choice.kernel for choice in choices.values()]
    result = tvm.IRModule(dict(module.functions_items()))
    for name, func in module.functions_items():
        if not isinstance(func, PrimFunc) or name.name_hint.startswith("kernel_"):
            continue
        if any(func.same_as(kernel) for kernel in done):
            continue
        scheduled = default_schedule(func, hardware).mod["main"]
        result.update_func(name, scheduled.without_attr("global_symbol"))
    return result
