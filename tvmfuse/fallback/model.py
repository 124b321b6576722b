"""Run an artifact in parts: compiled ones by TVM, the others by PyTorch."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch

from tvmfuse.errors import ArtifactError
from tvmfuse.fallback.manifest import Part, SegmentedManifest, read_segmented
from tvmfuse.runtime import LoadedModel
from tvmfuse.runtime import load as load_whole
from tvmfuse.runtime.arguments import Marshal
from tvmfuse.runtime.manifest import REMEDY, check_sha256, check_size, sha256_of
from tvmfuse.signature import Signature, unflatten


class SegmentedModel:
    """A model in parts, ready to run; made by :func:`tvmfuse.load`.

    Calls may come from several Python threads: they run one after another.
    """

    def __init__(
        self, directory: Path, manifest: SegmentedManifest, threads: int | None, verify: bool
    ) -> None:
        self.directory, self.manifest = directory, manifest
        self.parts = tuple(_open(directory, p, threads, verify) for p in manifest.parts)
        whole = next(p for p in self.parts if isinstance(p, LoadedModel))
        self.threads = whole.threads
        self._marshal = Marshal(whole._ffi, manifest.signature)
        self._lock = threading.Lock()

    @property
    def signature(self) -> Signature:
        """Inputs and outputs; an extent of an output that depends on values is -1."""
        return self.manifest.signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model.

        Parameters
        ----------
        args, kwargs
            The arguments of the original module, as for
            :class:`tvmfuse.runtime.LoadedModel`.

        Returns
        -------
        Any
            The original structure; torch tensors if torch tensors came in, NumPy arrays otherwise.

        Raises
        ------
        InputError
            The arguments do not fit the signature.
        """
        with self._lock:
            tensors, asked_torch = self._marshal.tensors(self._marshal.bind(args, kwargs))
            return self._called(tensors, asked_torch)

    def _called(self, tensors: list[Any], asked_torch: Any) -> Any:
        with torch.no_grad():
            inputs = [torch.from_dlpack(t) for t in tensors]
            values = self.run(inputs)
            borrowed = {t.untyped_storage().data_ptr() for t in inputs}
            leaves = [_own(values[name], borrowed) for name in self.manifest.outputs]
        if asked_torch is None:
            leaves = [v.numpy() if isinstance(v, torch.Tensor) else v for v in leaves]
        return unflatten(self.signature.output_tree, leaves)

    def run(self, inputs: list[torch.Tensor]) -> dict[str, Any]:
        """Run all parts on the flat inputs; the values by name."""
        values: dict[str, Any] = dict(zip(self.manifest.inputs, inputs, strict=True))
        for part, run in zip(self.manifest.parts, self.parts, strict=True):
            results = run(*(values[name] for name in part.inputs))
            values.update(zip(part.outputs, results, strict=True))
        return values

    def __repr__(self) -> str:
        lines = [f"SegmentedModel({str(self.directory)!r})"]
        lines.append(f"  runs on     {self.threads} threads, {len(self.parts)} parts")
        lines += [
            f"  {'compiled' if p.compiled else 'PyTorch':<11} "
            f"({', '.join(p.inputs)}) -> ({', '.join(p.outputs)})"
            for p in self.manifest.parts
        ]
        return "\n".join(lines)


def _own(value: Any, borrowed: set[int]) -> Any:
    """A copy of what lies in the caller's memory; the value itself otherwise."""
    if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() in borrowed:
        return value.clone()
    return value


def load_segmented(directory: Path, threads: int | None, verify: bool) -> SegmentedModel:
    """Open an artifact in parts; errors as for :func:`tvmfuse.load`."""
    manifest = read_segmented(directory)
    try:
        return SegmentedModel(directory, manifest, threads, verify)
    except StopIteration:
        raise ArtifactError(f"{directory} has no compiled part; {REMEDY}") from None


def _open(directory: Path, part: Part, threads: int | None, verify: bool) -> Any:
    if part.compiled:
        return load_whole(directory / part.path, threads, verify)
    if part.seal is None:
        raise ArtifactError(f"the manifest does not seal {part.path}; {REMEDY}")
    path = check_size(directory, part.path, part.seal)
    if verify:
        check_sha256(path, sha256_of(path), part.seal)
    try:
        return torch.export.load(path).module()
    except Exception as error:  # PyTorch raises many kinds
        raise ArtifactError(
            f"PyTorch {torch.__version__} cannot open {path}: {type(error).__name__}: {error}; "
            f"{REMEDY}"
        ) from error
