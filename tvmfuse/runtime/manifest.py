"""``manifest.json``: what an artifact is, what it needs, and what its files must look like."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tvmfuse.errors import ArtifactError
from tvmfuse.signature import IndexBound, Signature

SCHEMA = 1
KIND = "tvmfuse-artifact"
SEGMENTED = "tvmfuse-segmented-artifact"  # its manifest is read by tvmfuse.fallback
MANIFEST = "manifest.json"
LIBRARY = "model.so"
WEIGHTS = "weights.safetensors"
REPORT = "report.json"
STATE_PREFIX = "state:"  # of the names of initial values among the weights
RUNTIME_LIBRARY = "lib/libtvm_runtime.so"
REMEDY = "copy the artifact again from where it was built, or rebuild it with 'tvmfuse compile'"
OFFLINE = "built offline, not run"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileSeal:
    """Size and sha256 that a file of the artifact must have."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All that is known of an artifact without opening its library.

    Parameters
    ----------
    signature
        Inputs and outputs.
    target_key, target_json
        The hardware key and the TVM target it was built for.
    features
        CPU flags, as Linux names them, without which the library cannot run.
    versions
        ``{"tvm": …, "tvm_ffi": …, "tvmfuse": …}`` at build time.
    provenance
        Where the model and its schedules come from; plain JSON data, shown by ``print(model)``.
    kernels
        Number of kernels in the library.
    weights
        Names of the weights in the order in which ``main`` takes them; filled by
        :func:`~tvmfuse.runtime.write.save_artifact`.
    layers
        Every kernel call of one inference in order: name of the kernel, and of the node of the
        exported program with the same value; empty where no node has it.
    states
        Names of the buffers that the model changes; ``main`` takes and returns them first. The
        weights' file holds their initial values under ``state:NAME``.
    bounds
        What inputs that are indices must satisfy; checked before each call.
    checks
        ``main`` returns an int32 for each, behind the states: this error, if it is not 0.
    gpu
        Of an artifact for a GPU: its ``name``, ``arch``, ``cc``, the resources of its ``kernels``,
        and in words whether they ever ran (``state``); empty for a CPU.
    files
        Seal of every file but ``manifest.json`` and ``report.json``; filled there too.
    """

    signature: Signature
    target_key: str
    target_json: dict[str, Any]
    features: tuple[str, ...]
    versions: dict[str, str]
    provenance: dict[str, Any]
    kernels: int
    weights: tuple[str, ...] = ()
    files: dict[str, FileSeal] = field(default_factory=dict)
    layers: tuple[tuple[str, str], ...] = ()
    states: tuple[str, ...] = ()
    bounds: tuple[IndexBound, ...] = ()
    checks: tuple[str, ...] = ()
    gpu: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``manifest.json``."""
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "signature": self.signature.to_json(),
            "target": {
                "key": self.target_key,
                "json": self.target_json,
                "features": list(self.features),
            },
            "versions": self.versions,
            "provenance": self.provenance,
            "kernels": self.kernels,
            "weights": list(self.weights),
            "states": list(self.states),
            "bounds": [asdict(bound) for bound in self.bounds],
            "checks": list(self.checks),
            "layers": [list(layer) for layer in self.layers],
            **({"gpu": self.gpu} if self.gpu else {}),
            "files": {
                name: {"size_bytes": seal.size_bytes, "sha256": seal.sha256}
                for name, seal in self.files.items()
            },
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Manifest:
        """Inverse of :meth:`to_json`; raises KeyError or TypeError on malformed data."""
        target = data["target"]
        return cls(
            signature=Signature.from_json(data["signature"]),
            target_key=target["key"],
            target_json=target["json"],
            features=tuple(target["features"]),
            versions=dict(data["versions"]),
            provenance=dict(data["provenance"]),
            kernels=int(data["kernels"]),
            weights=tuple(data["weights"]),
            files={
                name: FileSeal(int(seal["size_bytes"]), str(seal["sha256"]))
                for name, seal in data["files"].items()
            },
            states=tuple(map(str, data.get("states", ()))),
            bounds=tuple(IndexBound(**bound) for bound in data.get("bounds", ())),
            checks=tuple(map(str, data.get("checks", ()))),
            gpu=dict(data.get("gpu", {})),
            layers=tuple((str(kernel), str(node)) for kernel, node in data.get("layers", ())),
        )


def read_manifest(directory: Path) -> Manifest:
    """Read and check ``manifest.json``.

    Raises
    ------
    ArtifactError
        The folder or the file is missing, is no artifact, or has another schema version.
    """
    path = directory / MANIFEST
    if not directory.is_dir():
        raise ArtifactError(f"no artifact at {directory}: there is no such folder")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{directory} is not an artifact: it has no {MANIFEST}") from None
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ArtifactError(f"{path} is damaged ({error}); {REMEDY}") from error
    if isinstance(data, dict) and data.get("kind") == SEGMENTED:
        raise ArtifactError(f"{directory} is an artifact in parts; open it with tvmfuse.load")
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise ArtifactError(f"{path} is not the manifest of a tvmfuse artifact")
    if data.get("schema") != SCHEMA:
        raise ArtifactError(
            f"{path} has schema version {data.get('schema')!r}, this tvmfuse reads version "
            f"{SCHEMA}; rebuild the artifact, or install the tvmfuse it was built with "
            f"({data.get('versions', {}).get('tvmfuse', 'unknown')})"
        )
    try:
        return Manifest.from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(
            f"{path} is damaged: {type(error).__name__} {error}; {REMEDY}"
        ) from error


def is_segmented(directory: Path) -> bool:
    """Whether ``directory`` holds an artifact in parts; False for whatever else is there."""
    try:
        data = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and data.get("kind") == SEGMENTED


def check_size(directory: Path, name: str, seal: FileSeal) -> Path:
    """Return the path of a file that exists and has the right size, else raise ArtifactError."""
    path = directory / name
    try:
        found = path.stat().st_size
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read ({error.strerror}); {REMEDY}") from error
    if found != seal.size_bytes:
        raise ArtifactError(
            f"{path} has {found} bytes, the manifest says {seal.size_bytes}; {REMEDY}"
        )
    return path


def check_sha256(path: Path, found: str, seal: FileSeal) -> None:
    """Raise ArtifactError where a file's contents are not those that were written."""
    if found != seal.sha256:
        raise ArtifactError(
            f"{path} was altered: sha256 {found}, the manifest says {seal.sha256}; {REMEDY}"
        )


def sha256_of(path: Path) -> str:
    """Hash a file in pieces, so that it is never in memory as a whole."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()
