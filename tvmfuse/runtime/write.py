"""Writing an artifact: whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from tvmfuse.errors import ArtifactError
from tvmfuse.runtime.manifest import (
    LIBRARY,
    MANIFEST,
    RUNTIME_LIBRARY,
    STATE_PREFIX,
    WEIGHTS,
    FileSeal,
    Manifest,
    is_segmented,
    read_manifest,
    sha256_of,
)
from tvmfuse.runtime.weights import write_weights

_SLACK_BYTES = 1 << 20  # manifest, safetensors header, folder entries


def save_artifact(
    directory: str | Path,
    *,
    library: Path,
    weights: Mapping[str, np.ndarray],
    manifest: Manifest,
    runtime_library: Path,
    states: Mapping[str, np.ndarray] | None = None,
) -> Manifest:
    """Write an artifact folder; an older artifact there is replaced when the new one is whole.

    Parameters
    ----------
    directory
        The folder to create; its parents are created too.
    library
        Relax VM executable, exported as a shared library. Its ``main`` takes the flat inputs and
        then all weights as one tuple, and returns a tuple.
    weights
        The arrays in the order of that tuple.
    states
        Initial values of the buffers that the model changes, by ``manifest.states``.
    manifest
        Everything but ``weights`` and ``files``, which are filled in here.
    runtime_library
        ``libtvm_runtime.so`` of the TVM that built the library.

    Returns
    -------
    Manifest
        As written.

    Raises
    ------
    ArtifactError
        The place is taken by something that is not an artifact, cannot be written, or the disk is
        full. Nothing half-written is left and an older artifact stays as it was.
    """
    final = Path(directory).absolute()
    _refuse_foreign(final)
    named = {f"{STATE_PREFIX}{name}": array for name, array in (states or {}).items()}
    size_bytes = sum(array.nbytes for array in [*weights.values(), *named.values()])
    size_bytes += _SLACK_BYTES
    partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
    try:
        size_bytes += library.stat().st_size + runtime_library.stat().st_size
        final.parent.mkdir(parents=True, exist_ok=True)
        _refuse_full(final.parent, size_bytes)
        shutil.rmtree(partial, ignore_errors=True)
        manifest = replace(manifest, weights=tuple(weights))
        sealed = _write_all(partial, library, {**weights, **named}, manifest, runtime_library)
        _swap_in(partial, final)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise _explain(error, final, size_bytes) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return sealed


def check_destination(directory: str | Path) -> None:
    """Raise ArtifactError where an artifact may not be written, before any work is spent on it."""
    final = Path(directory).absolute()
    _refuse_foreign(final)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explain(error, final, _SLACK_BYTES) from error
    if not os.access(final.parent, os.W_OK):
        raise ArtifactError(f"cannot write the artifact {final}: {final.parent} is not writable")


def install_artifact(staged: Path, directory: str | Path) -> Path:
    """Move a whole artifact from the same file system to its place; raises ArtifactError."""
    final = Path(directory).absolute()
    _refuse_foreign(final)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _swap_in(staged, final)
    except OSError as error:
        raise _explain(error, final, _size_of(staged)) from error
    return final


def copy_artifact(source: Path, directory: str | Path) -> Path:
    """Copy a whole artifact; an older one there is replaced when the copy is whole."""
    final = Path(directory).absolute()
    partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, partial)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise _explain(error, final, _size_of(source)) from error
    try:
        return install_artifact(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _refuse_foreign(final: Path) -> None:
    """Never overwrite what is not ours; an empty folder is nobody's."""
    if not final.exists() and not final.is_symlink():
        return
    real = final.is_dir() and not final.is_symlink()
    if real and (not any(final.iterdir()) or is_segmented(final)):
        return
    try:
        if final.is_symlink() or not final.is_dir():
            raise ArtifactError("it is not a folder")
        read_manifest(final)
    except ArtifactError as error:
        if (final / MANIFEST).is_file() and "schema version" in str(error):
            return  # an artifact of another tvmfuse is an artifact
        raise ArtifactError(
            f"will not overwrite {final}: {error}; choose another folder or remove it yourself"
        ) from error


def _refuse_full(parent: Path, size_bytes: int) -> None:
    free = shutil.disk_usage(parent).free
    if free < size_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(parent))


def _explain(error: OSError, final: Path, size_bytes: int) -> ArtifactError:
    said = f"cannot write the artifact {final}: {error.strerror or error}"
    if error.filename:
        said += f" ({error.filename})"
    said += f"; it needs about {size_bytes / 1e6:.1f} MB"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        existing = next(p for p in final.parents if p.exists())
        said += f", {shutil.disk_usage(existing).free / 1e6:.1f} MB are free"
    return ArtifactError(said + "; nothing was left behind: free space or choose another folder")


def _write_all(
    partial: Path,
    library: Path,
    tensors: Mapping[str, np.ndarray],
    manifest: Manifest,
    runtime_library: Path,
) -> Manifest:
    (partial / RUNTIME_LIBRARY).parent.mkdir(parents=True)
    seals = {WEIGHTS: write_weights(partial / WEIGHTS, tensors)}
    for name, source in ((LIBRARY, library), (RUNTIME_LIBRARY, runtime_library)):
        copy = partial / name
        shutil.copyfile(source, copy)
        seals[name] = FileSeal(copy.stat().st_size, sha256_of(copy))
    sealed = replace(manifest, files=seals)
    text = json.dumps(sealed.to_json(), indent=1, ensure_ascii=False) + "\n"
    (partial / MANIFEST).write_text(text, encoding="utf-8")
    for path in (*(partial / name for name in seals), partial / MANIFEST, partial / "lib", partial):
        _fsync(path)
    return sealed


def _swap_in(partial: Path, final: Path) -> None:
    old = final.with_name(f".{final.name}.{os.getpid()}.old")
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    try:
        partial.rename(final)
    except OSError:
        if old.exists():
            old.rename(final)
        raise
    _fsync(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
