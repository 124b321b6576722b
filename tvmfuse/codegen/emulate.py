"""Runs a scheduled kernel for CUDA on this CPU: TVM's own CUDA text, compiled by g++.

Slow, and meant for small shapes: it is how a schedule is checked where there is no GPU. The text is
taken as it is but for its pointers, which become checked ones (see ``emulator.h``).
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import PrimFunc
from tvm.tirx.build import split_host_device_mods

from tvmfuse.config import environment
from tvmfuse.errors import BuildError
from tvmfuse.schedules.cuda.fragments import pass_config

GUARD_BYTES = 4096  # around every buffer, so that a stray access meets nobody's data
_SIGNATURE = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\) \{'
)
_DECLARED = re.compile(r'extern "C" __global__ void [^;{]*;')
_SHARED = re.compile(r"(?:volatile )?__shared__ (?:alignas\(\d+\) )?(\w+) (\w+)\[(\d+)\];")
_CAST = re.compile(r"\((?:volatile )?(\w+) ?\*\)(?:(\w+)|(?=\())")
_AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Launch:
    """One launch: the kernel's name, its buffers by name, grid and block."""

    kernel: str
    buffers: tuple[str, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]


@dataclass(frozen=True)
class CudaText:
    """What TVM makes of one PrimFunc: text, launches in order, and buffers between launches."""

    source: str
    launches: tuple[Launch, ...]
    parameters: tuple[str, ...]
    workspaces: dict[str, tuple[tuple[int, ...], str]]


def missing() -> str:
    """Why nothing can be emulated here; empty if it can."""
    return "" if shutil.which("g++") else "no g++ on this machine"


def cuda_text(func: PrimFunc, target_json: dict[str, Any]) -> CudaText:
    """Lower a scheduled PrimFunc and generate its CUDA text; needs neither driver nor toolkit."""
    target = tvm.target.Target(target_json).with_host("llvm")
    named = func.with_attr("global_symbol", "main")
    with target, tvm.transform.PassContext(config=pass_config([func])):
        bound = tirx.transform.BindTarget(target)(tvm.IRModule({"main": named}))
        pipeline, _, finish = tirx.get_default_tir_pipeline(target)
        host, device = split_host_device_mods(pipeline(bound))
        if len(device) != 1:
            raise BuildError(f"a kernel for CUDA has {len(device)} device modules")
        (module,) = device.values()
        source = _text(finish()(module), target)
    (entry,) = (f for f in host.functions.values() if isinstance(f, PrimFunc))
    launches, workspaces = _host(entry)
    names = tuple(str(p.name) for p in func.params)
    return CudaText(source, tuple(launches), names, workspaces)


def _text(module: tvm.IRModule, target: Any) -> str:
    # With it TVM makes a module of text instead of a compiled one.
    with environment("TVM_COMPILE_FORCE_FALLBACK", "1"):
        return str(tvm.get_global_func("target.build.cuda")(module, target).inspect_source())


def _host(entry: PrimFunc) -> tuple[list[Launch], dict[str, tuple[tuple[int, ...], str]]]:
    """Launches and workspaces of the host's part."""
    launches: list[Launch] = []
    workspaces: dict[str, tuple[tuple[int, ...], str]] = {}

    def call(node: Any) -> None:
        if getattr(node.op, "name", "") != "tirx.call_ffi_kernel":
            return
        tags = [str(tag) for tag in node.attrs.launch_params]
        first = len(node.args) - len(tags)
        data = node.args[1:first]
        sizes = {t: int(v) for t, v in zip(tags, node.args[first:], strict=True)}
        grid, block = (
            tuple(sizes.get(f"{kind}.{axis}", 1) for axis in _AXES)
            for kind in ("blockIdx", "threadIdx")
        )
        names = tuple(str(d).removesuffix(".data") for d in data)
        kernel = str(node.args[0].value)
        launches.append(Launch(kernel, names, grid, block))  # type: ignore[arg-type]

    def allocated(node: Any) -> None:
        buffer = node.buffer
        name = str(buffer.name).replace(".", "_")  # as where it is passed
        workspaces[name] = (tuple(int(e) for e in buffer.shape), str(buffer.dtype))

    tvm_ffi.structural_walk(entry.body, (tvm.ir.Call, call))
    tvm_ffi.structural_walk(entry.body, (tirx.AllocBuffer, allocated))
    return launches, workspaces


def instrumented(source: str) -> str:
    """The CUDA text with checked pointers and one entry a kernel, as C++."""
    source = _DECLARED.sub("", source[source.index('extern "C"') :])
    entries = []

    def signature(match: re.Match[str]) -> str:
        name, parameters = match.group(1), match.group(2)
        pairs = re.findall(r"(?:const )?(\w+)\* ?(?:__restrict__ )?(\w+)", parameters)
        entries.append(_entry(name, [kind for kind, _ in pairs]))
        return f"static void {name}({', '.join(f'emu::Pointer<{k}> {v}' for k, v in pairs)}) {{"

    source = _SIGNATURE.sub(signature, source)
    source = _SHARED.sub(r'static emu::Shared<\1, \3> \2("\2");', source)
    source = _CAST.sub(lambda m: f"emu::cast<{m[1]}>" + (f"({m[2]})" if m[2] else ""), source)
    return '#include "emulator.h"\n' + source + "\n".join(entries) + _REPORT


_REPORT = """
extern "C" const char* emu_report() { return emu::report.c_str(); }
"""


def _entry(name: str, kinds: Sequence[str]) -> str:
    memories = "\n".join(
        f"  emu::Memory m{i}(names[{i}], data[{i}], bytes[{i}], sizeof({kind}) < 4 ? sizeof({kind})"
        f" : 4, false); static emu::Pointer<{kind}> p{i}; p{i} = {{&m{i}, (char*)data[{i}]}};"
        for i, kind in enumerate(kinds)
    )
    arguments = ", ".join(f"p{i}" for i in range(len(kinds)))
    return f"""
extern "C" int emu_{name}(void** data, const long* bytes, const char** names, const int* grid,
                          const int* block, int backwards) {{
{memories}
  emu::faults = 0;
  emu::report.clear();
  emu::body = [] {{ {name}({arguments}); }};
  emu::run_grid(grid, block, backwards);
  return emu::faults;
}}
"""


class Emulated:
    """A kernel ready to be run; ``faults`` of the last run, empty when all was well."""

    def __init__(self, text: CudaText) -> None:
        self.text = text
        self.faults = ""
        with tempfile.TemporaryDirectory(prefix="tvmfuse-emulate-") as scratch:
            source, library = Path(scratch) / "kernel.cpp", Path(scratch) / "kernel.so"
            source.write_text(instrumented(text.source), encoding="utf-8")
            command = [
                "g++", "-O1", "-w", "-std=c++17", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE",
                "-shared", "-fPIC", "-I", str(Path(__file__).parent), "-o", str(library),
                str(source),
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise BuildError(f"g++ does not take the CUDA text: {done.stderr[:2000]}")
            self._library = ctypes.CDLL(str(library))
        self._library.emu_report.restype = ctypes.c_char_p

    def __call__(self, *arrays: np.ndarray, backwards: bool = False) -> None:
        """Run on arrays in the order of the PrimFunc's parameters; results are written to them.

        ``backwards`` runs the threads of every block in the opposite order.
        """
        fields = dict(zip(self.text.parameters, arrays, strict=True))
        for name, (shape, dtype) in self.text.workspaces.items():
            kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
            fields[name] = np.full(shape, 77, kind)
        guarded = {name: _guarded(array) for name, array in fields.items()}
        self.faults = ""
        for launch in self.text.launches:
            self._launch(launch, guarded, backwards)
        for name, array in fields.items():
            array[...] = guarded[name].view(array.dtype).reshape(array.shape)

    def _launch(self, launch: Launch, guarded: dict[str, np.ndarray], backwards: bool) -> None:
        used = [guarded[name] for name in launch.buffers]
        count = len(used)
        data = (ctypes.c_void_p * count)(*[a.ctypes.data for a in used])
        sizes = (ctypes.c_long * count)(*[a.nbytes for a in used])
        names = (ctypes.c_char_p * count)(*[n.encode() for n in launch.buffers])
        triple = ctypes.c_int * 3
        run = getattr(self._library, f"emu_{launch.kernel}")
        if run(data, sizes, names, triple(*launch.grid), triple(*launch.block), int(backwards)):
            self.faults += self._library.emu_report().decode()


def _guarded(array: np.ndarray) -> np.ndarray:
    """Bytes of an array, between guard zones."""
    whole = np.full(array.nbytes + 2 * GUARD_BYTES, 0xFF, np.uint8)
    middle = whole[GUARD_BYTES : GUARD_BYTES + array.nbytes]
    middle[:] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    return middle


def emulate(func: PrimFunc, target_json: dict[str, Any], arrays: Sequence[np.ndarray]) -> str:
    """Run a scheduled PrimFunc with its threads in both orders; returns what was at fault.

    The arrays are the PrimFunc's parameters; results are written to them.
    """
    kernel = Emulated(cuda_text(func, target_json))
    first = [a.copy() for a in arrays]
    kernel(*first)
    faults = kernel.faults
    kernel(*arrays, backwards=True)
    faults += "".join(_differences(first, arrays))
    return faults


def _differences(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> Iterator[str]:
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        if a.tobytes() != b.tobytes():
            yield f"parameter {number} depends on the order of the threads\n"
