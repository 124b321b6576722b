"""``manifest.json`` of an artifact in parts; every compiled part has a manifest of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmfuse.errors import ArtifactError
from tvmfuse.runtime.manifest import MANIFEST, REMEDY, SEGMENTED, FileSeal
from tvmfuse.signature import Signature

SCHEMA = 1


@dataclass(frozen=True)
class Part:
    """One part: a folder with an artifact, or a file with a PyTorch program.

    Parameters
    ----------
    path
        Relative to the artifact's folder.
    compiled
        Whether it is an artifact.
    inputs, outputs
        Names of the values that it takes and returns.
    seal
        Of the file; None for an artifact, whose own manifest seals it.
    """

    path: str
    compiled: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    seal: FileSeal | None = None


@dataclass(frozen=True)
class SegmentedManifest:
    """What the parts are, and how values pass between them.

    Parameters
    ----------
    signature
        Of the whole; an extent of an output that depends on values is -1.
    parts
        In the order in which they run.
    inputs, outputs
        Names of the flat inputs and outputs among the values.
    versions
        ``{"torch": …, "tvmfuse": …}`` at build time.
    provenance
        Where the model comes from; plain JSON data.
    """

    signature: Signature
    parts: tuple[Part, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    versions: dict[str, str]
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``manifest.json``."""
        parts = [
            {
                "path": p.path,
                "compiled": p.compiled,
                "inputs": list(p.inputs),
                "outputs": list(p.outputs),
                "seal": p.seal and {"size_bytes": p.seal.size_bytes, "sha256": p.seal.sha256},
            }
            for p in self.parts
        ]
        return {
            "kind": SEGMENTED,
            "schema": SCHEMA,
            "signature": self.signature.to_json(),
            "parts": parts,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "versions": self.versions,
            "provenance": self.provenance,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SegmentedManifest:
        """Inverse of :meth:`to_json`; raises KeyError or TypeError on malformed data."""
        parts = tuple(
            Part(
                p["path"],
                bool(p["compiled"]),
                tuple(p["inputs"]),
                tuple(p["outputs"]),
                FileSeal(int(p["seal"]["size_bytes"]), p["seal"]["sha256"]) if p["seal"] else None,
            )
            for p in data["parts"]
        )
        return cls(
            Signature.from_json(data["signature"]),
            parts,
            tuple(data["inputs"]),
            tuple(data["outputs"]),
            dict(data["versions"]),
            dict(data["provenance"]),
        )


def read_segmented(directory: Path) -> SegmentedManifest:
    """Read the manifest; raises ArtifactError where it is damaged or of another version."""
    path = directory / MANIFEST
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ArtifactError(
                f"{path} has schema version {data['schema']!r}, this tvmfuse reads version "
                f"{SCHEMA}; rebuild the artifact"
            )
        return SegmentedManifest.from_json(data)
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(
            f"{path} is damaged: {type(error).__name__} {error}; {REMEDY}"
        ) from error
