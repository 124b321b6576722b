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
class BranchParts:
    """What one side of a choice runs.

    Parameters
    ----------
    parts
        In the order in which they run.
    inputs
        Each name of a value inside, with the name that it has outside.
    outputs
        Names inside.
    """

    parts: tuple[Part | ChoicePart, ...]
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class ChoicePart:
    """A choice between parts.

    Parameters
    ----------
    path
        Of the folder that holds the parts of its branches.
    predicate
        Name of the value that decides; None where there is one branch.
    branches
        That of a true predicate, and the other one.
    outputs
        Names of the values that it gives, in the order of each branch's own.
    """

    path: str
    predicate: str | None
    branches: tuple[BranchParts, ...]
    outputs: tuple[str, ...]


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
    parts: tuple[Part | ChoicePart, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    versions: dict[str, str]
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``manifest.json``."""
        return {
            "kind": SEGMENTED,
            "schema": SCHEMA,
            "signature": self.signature.to_json(),
            "parts": [_to_json(part) for part in self.parts],
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "versions": self.versions,
            "provenance": self.provenance,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SegmentedManifest:
        """Inverse of :meth:`to_json`; raises KeyError or TypeError on malformed data."""
        return cls(
            Signature.from_json(data["signature"]),
            tuple(map(_from_json, data["parts"])),
            tuple(data["inputs"]),
            tuple(data["outputs"]),
            dict(data["versions"]),
            dict(data["provenance"]),
        )


def _to_json(part: Part | ChoicePart) -> dict[str, Any]:
    if isinstance(part, Part):
        seal = part.seal and {"size_bytes": part.seal.size_bytes, "sha256": part.seal.sha256}
        return {
            "path": part.path,
            "compiled": part.compiled,
            "inputs": list(part.inputs),
            "outputs": list(part.outputs),
            "seal": seal,
        }
    branches = [
        {
            "parts": [_to_json(p) for p in branch.parts],
            "inputs": [list(pair) for pair in branch.inputs],
            "outputs": list(branch.outputs),
        }
        for branch in part.branches
    ]
    return {
        "path": part.path,
        "predicate": part.predicate,
        "branches": branches,
        "outputs": list(part.outputs),
    }


def _from_json(data: dict[str, Any]) -> Part | ChoicePart:
    if "branches" not in data:
        seal = data["seal"] and FileSeal(int(data["seal"]["size_bytes"]), data["seal"]["sha256"])
        inputs, outputs = tuple(data["inputs"]), tuple(data["outputs"])
        return Part(data["path"], bool(data["compiled"]), inputs, outputs, seal)
    branches = tuple(
        BranchParts(
            tuple(map(_from_json, branch["parts"])),
            tuple((inside, outside) for inside, outside in branch["inputs"]),
            tuple(branch["outputs"]),
        )
        for branch in data["branches"]
    )
    return ChoicePart(data["path"], data["predicate"], branches, tuple(data["outputs"]))


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
