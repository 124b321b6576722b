"""Where compilers for CUDA text are: NVRTC of the wheels or of a toolkit, or nvcc.

CUDA 13 compiles for compute capability 7.5 and newer. For older devices (Jetson Nano, TX2,
Xavier) NVRTC of CUDA 12 serves, whose wheel may be installed beside CUDA 13's.
"""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

from tvmfuse.config import cuda_homes
from tvmfuse.errors import BuildError

OLDEST_OF_13 = 75
_WHEEL_12 = "nvidia-cuda-nvrtc-cu12"
_HEADERS_12 = "nvidia-cuda-runtime-cu12"


@dataclass(frozen=True)
class Toolkit:
    """One compiler.

    Parameters
    ----------
    kind
        ``"nvrtc"`` (a library, run in this process) or ``"nvcc"`` (a program).
    path
        The library or the program.
    include
        Folder with ``cuda_fp16.h``; None where the compiler finds it by itself.
    """

    kind: str
    path: Path
    include: Path | None = None


def find_toolkit(cc: int) -> Toolkit:
    """The compiler for a compute capability.

    Raises
    ------
    BuildError
        There is none; the message names the packages that bring one.
    """
    major = 13 if cc >= OLDEST_OF_13 else 12
    library = _first(_libraries(f"libnvrtc.so.{major}"))
    if library is not None:
        return Toolkit("nvrtc", library, _include_beside(library, major))
    nvcc = _nvcc(major)
    if nvcc is not None:
        return Toolkit("nvcc", nvcc)
    if major == 12:
        raise BuildError(
            f"kernels for sm_{cc} need the compiler of CUDA 12 (CUDA 13 begins at sm_75), which is "
            f"not installed: pip install {_WHEEL_12} {_HEADERS_12}, or 'tvmfuse[jetson]'"
        )
    raise BuildError(
        f"kernels for sm_{cc} need NVRTC or nvcc of CUDA 13, and neither is installed: "
        "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime (PyTorch's CUDA wheels bring both), or "
        "set CUDA_PATH to a toolkit"
    )


def cudart() -> Path | None:
    """CUDA's runtime library, which TVM's CUDA runtime is linked to; None if it is not here."""
    return _first(_libraries("libcudart.so.13"))


def _first(paths: list[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _wheels() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    return [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []


def _libraries(name: str) -> list[Path]:
    inside = [path for wheel in _wheels() for path in sorted(wheel.glob(f"*/lib/{name}"))]
    homes = [home / folder / name for home in cuda_homes() for folder in ("lib64", "lib")]
    return [*inside, *homes]


def _include_beside(library: Path, major: int) -> Path | None:
    """Headers of the same CUDA: beside the library, or in the wheel of the runtime."""
    near = [library.parent.parent / "include"]
    if major == 12:
        near = [wheel / "cuda_runtime" / "include" for wheel in _wheels()] + near
    return next((folder for folder in near if (folder / "cuda_fp16.h").is_file()), None)


def _nvcc(major: int) -> Path | None:
    """nvcc of CUDA 13; that of CUDA 12 is not told apart from it, so the wheel is asked for."""
    if major == 12:
        return None
    beside = _first([home / "bin" / "nvcc" for home in cuda_homes()])
    found = shutil.which("nvcc")
    return beside or (Path(found) if found else None)
