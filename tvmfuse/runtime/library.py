"""Bringing TVM's runtime into the process: once, in the right version, without torch."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from tvmfuse.errors import ArtifactError
from tvmfuse.runtime.manifest import RUNTIME_LIBRARY, Manifest, check_sha256, check_size, sha256_of

_lock = threading.Lock()
# Version of the runtime that this module loaded from an artifact; None: tvm's own or none yet.
_bundled_version: str | None = None


_NOT_NEEDED = ("torch", "cuda")  # imported by tvm_ffi if they can be


def import_ffi() -> ModuleType:
    """Import ``tvm_ffi`` without what it would pull in wherever that is installed.

    ``tvm_ffi`` imports torch "first" to avoid a symbol conflict on Windows and finds tensors by
    their ``__dlpack__`` attributes in any case, so a loader need not pay seconds and 300 MB for
    it; nor the memory of CUDA's bindings, which compile kernels.
    """
    hidden = [] if "tvm_ffi" in sys.modules else [n for n in _NOT_NEEDED if n not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        import tvm_ffi
    except ImportError as error:
        raise ArtifactError(
            f"running an artifact needs the package apache-tvm-ffi ({error}): "
            "pip install 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'"
        ) from error
    finally:
        for name in hidden:
            del sys.modules[name]
    return tvm_ffi


def ensure_runtime(directory: Path, manifest: Manifest, verify: bool) -> Any:
    """Make TVM's runtime functions available and return ``tvm_ffi``.

    The runtime of an imported or installed ``tvm`` is used before the artifact's own copy: a
    process that holds one copy and then imports ``tvm`` would register every function twice.

    Raises
    ------
    ArtifactError
        The versions do not fit, or no runtime can be loaded.
    """
    global _bundled_version
    with _lock:
        ffi = import_ffi()
        _check_ffi(manifest)
        installed = _installed_tvm()
        if installed is not None:
            _check_tvm(manifest, installed, "installed here")
        elif _bundled_version is not None:
            _check_tvm(manifest, _bundled_version, "already loaded from another artifact")
        if ffi.get_global_func("runtime.config_threadpool", allow_missing=True) is not None:
            return ffi
        path = _tvm_runtime() if installed is not None else None
        if path is None:
            seal = manifest.files.get(RUNTIME_LIBRARY)
            if seal is None:
                raise ArtifactError(f"the manifest of {directory} does not list {RUNTIME_LIBRARY}")
            path = check_size(directory, RUNTIME_LIBRARY, seal)
            if verify:
                check_sha256(path, sha256_of(path), seal)
            _bundled_version = manifest.versions.get("tvm")
        try:
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise ArtifactError(f"cannot load TVM's runtime {path}: {error}") from error
        return ffi


def _installed_tvm() -> str | None:
    try:
        if importlib.util.find_spec("tvm") is None:
            return None
        return importlib.metadata.version("apache-tvm")
    except (ImportError, ValueError):  # ValueError: sys.modules["tvm"] is None, i.e. forbidden
        return None


def _tvm_runtime() -> Path | None:
    spec = importlib.util.find_spec("tvm")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "lib" / "libtvm_runtime.so"
        if path.is_file():
            return path
    return None


def _check_tvm(manifest: Manifest, found: str, where: str) -> None:
    built = manifest.versions.get("tvm")
    if found != built:
        raise ArtifactError(
            f"the artifact was built with TVM {built}, but TVM {found} is {where}; "
            f"install apache-tvm=={built}, load it in an environment without apache-tvm (the "
            "artifact carries its own runtime), or rebuild the artifact"
        )


def _check_ffi(manifest: Manifest) -> None:
    built = manifest.versions.get("tvm_ffi", "")
    found = importlib.metadata.version("apache-tvm-ffi")
    # A.B.C fixes the binary interface (0.1.15 crashes TVM 0.27); post releases of one C agree.
    if found.split(".")[:3] != built.split(".")[:3]:
        series = ".".join(built.split(".")[:3])
        raise ArtifactError(
            f"the artifact was built with apache-tvm-ffi {built}, version {found} is installed; "
            f"pip install 'apache-tvm-ffi~={series}.0'"
        )
