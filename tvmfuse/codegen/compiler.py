"""CUDA text to machine code: one entry, which TVM calls back for every module it builds.

Fast math is off: it turns divisions, square roots and exponentials into approximations whose
errors the tolerances of verification do not allow for, and flushes small numbers to zero, where
eager PyTorch does neither.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmfuse.codegen.driver import ensure_cuda_runtime
from tvmfuse.codegen.nvrtc import compile_nvrtc
from tvmfuse.codegen.ptxas import KernelUsage, parse_usage
from tvmfuse.codegen.sass import tensor_instructions
from tvmfuse.codegen.toolkits import Toolkit, find_toolkit
from tvmfuse.errors import BuildError
from tvmfuse.hardware import Hardware

_BOUNDS = re.compile(r"__launch_bounds__\((\d+)\)")
_CALLBACK = "tvm_callback_cuda_compile"
_compiled: dict[str, Cubin] = {}  # by hash of architecture and text, for this process
_one_at_a_time = threading.Lock()  # TVM has one callback for the process


@dataclass(frozen=True)
class Cubin:
    """Machine code of one text.

    Parameters
    ----------
    code
        The cubin: an ELF file.
    arch
        For which it is, e.g. ``"sm_75"``.
    kernels
        Resources of each kernel.
    seconds
        What compiling took.
    compiler
        ``"nvrtc"`` or ``"nvcc"``.
    """

    code: bytes
    arch: str
    kernels: tuple[KernelUsage, ...]
    seconds: float
    compiler: str


def compile_cuda(code: str, arch: str, cc: int) -> Cubin:
    """Compile CUDA text, or take what this process has compiled before.

    Raises
    ------
    BuildError
        There is no compiler for the architecture, or it refuses the text.
    """
    key = hashlib.sha256(f"{arch}\n{code}".encode()).hexdigest()
    if key not in _compiled:
        toolkit = find_toolkit(cc)
        begin = time.perf_counter()
        run = compile_nvrtc if toolkit.kind == "nvrtc" else _compile_nvcc
        cubin, log = run(toolkit, roomy(code), arch)
        seconds = time.perf_counter() - begin
        tensor = tensor_instructions(cubin, cc)
        kernels = tuple(
            dataclasses.replace(k, tensor_instructions=tensor.get(k.name, 0))
            for k in parse_usage(log)
        )
        _compiled[key] = Cubin(cubin, arch, kernels, seconds, toolkit.kind)
    return _compiled[key]


def roomy(code: str) -> str:
    """The text with all registers for kernels on tensor cores.

    A block of theirs is resident for its shared memory; told nothing, ptxas aims at 48 or 80
    registers for sm_80 and newer, and spilled a few bytes in 9 of the 87 such kernels of ResNet-50
    in float16 (three targets), none with one block a multiprocessor as the aim.
    """
    if "nvcuda::wmma" not in code:
        return code
    return _BOUNDS.sub(r"__launch_bounds__(\1, 1)", code)


def _compile_nvcc(toolkit: Toolkit, code: str, arch: str) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory(prefix="tvmfuse-") as scratch:
        source, cubin = Path(scratch) / "kernels.cu", Path(scratch) / "kernels.cubin"
        source.write_text(code, encoding="utf-8")
        number = arch.removeprefix("sm_")
        command = [str(toolkit.path), "--cubin", "-O3", "-w", "-std=c++17", "-Xptxas", "-v",
                   "-gencode", f"arch=compute_{number},code=sm_{number}",
                   "-o", str(cubin), str(source)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"nvcc refuses the kernels for {arch}:\n{done.stderr[-4000:]}")
        return cubin.read_bytes(), done.stderr + done.stdout


class CudaCompiler:
    """What one build compiles, kept.

    Attributes
    ----------
    cubins : list of Cubin
        One for each module of device code that TVM handed over.
    """

    def __init__(self, hardware: Hardware) -> None:
        assert hardware.gpu is not None
        self._gpu = hardware.gpu
        self.cubins: list[Cubin] = []

    @contextlib.contextmanager
    def installed(self) -> Iterator[CudaCompiler]:
        """Let TVM call this compiler, from any thread, while the context is open."""
        import tvm_ffi

        find_toolkit(self._gpu.cc)  # what is missing is said before anything is built
        ensure_cuda_runtime()
        with _one_at_a_time:
            tvm_ffi.register_global_func(_CALLBACK, self._compile, override=True)
            yield self

    @property
    def kernels(self) -> tuple[KernelUsage, ...]:
        """Resources of all kernels."""
        return tuple(kernel for cubin in self.cubins for kernel in cubin.kernels)

    @property
    def seconds(self) -> float:
        """What compiling took."""
        return sum(cubin.seconds for cubin in self.cubins)

    def _compile(self, code: str, *_: Any) -> bytes:
        cubin = compile_cuda(code, self._gpu.arch, self._gpu.cc)
        self.cubins.append(cubin)
        return cubin.code
