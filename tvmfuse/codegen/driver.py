"""TVM's CUDA runtime in a process without a driver, so that it can make modules of cubins.

Without a driver the runtime does not load, and TVM then silently stores CUDA *text* in the
artifact, for the target machine to compile. The runtime needs eleven functions of the driver to be
there, not to work: a stub library has them, each of which fails. Where there is a driver, it is
never loaded.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from tvmfuse.codegen.toolkits import cudart
from tvmfuse.errors import BuildError

_DRIVER = "libcuda.so.1"
_FUNCTIONS = (
    "cuInit", "cuDriverGetVersion", "cuDeviceGetName", "cuFuncSetAttribute", "cuGetErrorName",
    "cuGetErrorString", "cuLaunchKernelEx", "cuModuleGetFunction", "cuModuleLoadData",
    "cuModuleUnload", "cuTensorMapEncodeTiled",
)  # fmt: skip
_STUB_LIBRARY = 34  # CUDA_ERROR_STUB_LIBRARY
_MODULE_MAKER = "ffi.Module.create.cuda"


@functools.cache
def ensure_cuda_runtime() -> None:
    """Load TVM's CUDA runtime, over a stub of the driver where there is none.

    Raises
    ------
    BuildError
        CUDA's runtime library, or the C compiler for the stub, is not installed.
    """
    import tvm

    def is_there() -> bool:
        return tvm.get_global_func(_MODULE_MAKER, allow_missing=True) is not None

    if is_there():
        return
    runtime = cudart()
    if runtime is None:
        raise BuildError(
            "TVM's CUDA runtime needs libcudart.so.13: pip install nvidia-cuda-runtime (PyTorch's "
            "CUDA wheels bring it), or set CUDA_PATH to a toolkit of CUDA 13"
        )
    library = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
    try:
        if not has_driver():
            _load_stub()
        ctypes.CDLL(str(runtime))
        ctypes.CDLL(str(library))
    except OSError as error:
        raise BuildError(f"TVM's CUDA runtime cannot be loaded: {error}") from error
    if not is_there():
        raise BuildError(f"{library} was loaded and brings no {_MODULE_MAKER}")


def has_driver() -> bool:
    """Whether NVIDIA's driver is installed; loads it if it is."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True


def _load_stub() -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BuildError(
            "building for a GPU on a machine without a driver needs a C compiler (gcc or clang) "
            "for eleven lines that stand in for it"
        )
    text = "".join(f"int {name}(void) {{ return {_STUB_LIBRARY}; }}\n" for name in _FUNCTIONS)
    with tempfile.TemporaryDirectory(prefix="tvmfuse-") as scratch:
        source, stub = Path(scratch) / "stub.c", Path(scratch) / _DRIVER
        source.write_text(text, encoding="ascii")
        command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{_DRIVER}", "-o", str(stub)]
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"the stub of the driver does not compile: {done.stderr[-500:]}")
        ctypes.CDLL(str(stub))
