"""Run an artifact in parts: compiled ones by TVM, the others by PyTorch, of branches only one.

PyTorch is imported for parts that it runs, and used for values where the caller does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tvmfuse.errors import ArtifactError
from tvmfuse.fallback.manifest import ChoicePart, Part, SegmentedManifest, read_segmented
from tvmfuse.runtime import LoadedModel
from tvmfuse.runtime import load as load_whole
from tvmfuse.runtime.arguments import Marshal
from tvmfuse.runtime.manifest import REMEDY, check_sha256, check_size, sha256_of
from tvmfuse.signature import Signature, unflatten

Values = dict[str, Any]
# Told the path of each part that runs, and what runs it on its arguments; returns what that does.
Watch = Callable[[str, Callable[..., Any], list[Any]], Any]


def _unwatched(_: str, run: Callable[..., Any], arguments: list[Any]) -> Any:
    return run(*arguments)


class SegmentedModel:
    """A model in parts, ready to run; made by :func:`tvmfuse.load`.

    Calls may come from several Python threads: they run one after another.
    """

    def __init__(
        self, directory: Path, manifest: SegmentedManifest, threads: int | None, verify: bool
    ) -> None:
        self.directory, self.manifest = directory, manifest
        parts = [p for p in _every_part(manifest.parts) if isinstance(p, Part)]
        self._opened = {p.path: _open(directory, p, threads, verify) for p in parts}
        self._needs_torch = not all(p.compiled for p in parts)
        whole = next(p for p in self._opened.values() if isinstance(p, LoadedModel))
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
            if self._needs_torch or asked_torch is not None:
                leaves = self._by_torch(tensors, asked_torch is not None)
            else:
                leaves = self._by_numpy(tensors)
            return unflatten(self.signature.output_tree, leaves)

    def _by_torch(self, tensors: list[Any], asked: bool) -> list[Any]:
        torch = sys.modules["torch"]
        with torch.no_grad():
            inputs = [torch.from_dlpack(t) for t in tensors]
            values = self.run(inputs)
            taken = {t.untyped_storage().data_ptr() for t in inputs}
            leaves = []
            for name in self.manifest.outputs:
                value = values[name]
                if isinstance(value, torch.Tensor):
                    memory = value.untyped_storage().data_ptr()
                    value = value.clone() if memory in taken else value
                    taken.add(memory)
                leaves.append(value)
        if asked:
            return leaves
        return [v.numpy() if isinstance(v, torch.Tensor) else v for v in leaves]

    def _by_numpy(self, tensors: list[Any]) -> list[Any]:
        values = self.run(tensors)
        leaves: list[Any] = []
        for name in self.manifest.outputs:
            value = values[name]
            if not isinstance(value, np.ndarray):  # an input that is returned as it is
                value = self._marshal.array(value)
            leaves.append(value.copy() if any(value is leaf for leaf in leaves) else value)
        return leaves

    def run(self, inputs: list[Any], watch: Watch = _unwatched) -> Values:
        """Run all parts on the flat inputs; the values by name."""
        values: Values = dict(zip(self.manifest.inputs, inputs, strict=True))
        self._run(self.manifest.parts, values, watch)
        return values

    def _run(self, parts: tuple[Part | ChoicePart, ...], values: Values, watch: Watch) -> None:
        for part in parts:
            if isinstance(part, ChoicePart):
                results = self._chosen(part, values, watch)
            else:
                run = self._opened[part.path]
                results = watch(part.path, run, [values[name] for name in part.inputs])
            values.update(zip(part.outputs, results, strict=True))

    def _chosen(self, choice: ChoicePart, values: Values, watch: Watch) -> list[Any]:
        true = choice.predicate is None or _truth(values[choice.predicate])
        branch = choice.branches[0 if true else 1]
        inner = {inside: values[outside] for inside, outside in branch.inputs}
        self._run(branch.parts, inner, watch)
        return [inner[name] for name in branch.outputs]

    def __repr__(self) -> str:
        lines = [f"SegmentedModel({str(self.directory)!r})"]
        lines.append(f"  runs on     {self.threads} threads, {len(self.manifest.parts)} parts")
        return "\n".join(lines + _said(self.manifest.parts, "  "))


def _said(parts: tuple[Part | ChoicePart, ...], indent: str) -> list[str]:
    lines = []
    for part in parts:
        outputs = ", ".join(part.outputs)
        if isinstance(part, Part):
            kind = "compiled" if part.compiled else "PyTorch"
            lines.append(f"{indent}{kind:<11} ({', '.join(part.inputs)}) -> ({outputs})")
            continue
        lines.append(f"{indent}{'choice':<11} by {part.predicate or 'a constant'} -> ({outputs})")
        for word, branch in zip(("if true", "if false"), part.branches, strict=False):
            lines += [f"{indent}  {word}", *_said(branch.parts, indent + "    ")]
    return lines


def _every_part(parts: tuple[Part | ChoicePart, ...]) -> Iterator[Part | ChoicePart]:
    for part in parts:
        yield part
        if isinstance(part, ChoicePart):
            for branch in part.branches:
                yield from _every_part(branch.parts)


def _truth(value: Any) -> bool:
    """Of a tensor of one element: PyTorch's, NumPy's or TVM's."""
    plain = value if hasattr(value, "item") else np.from_dlpack(value)
    return bool(plain.item())


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
        import torch
        import torch.ao.quantization.fx._decomposed  # registers operators of quantised parts
    except ImportError as error:
        raise ArtifactError(
            f"PyTorch runs parts of {directory} (--fallback eager) and cannot be imported: {error}"
        ) from error
    try:
        return torch.export.load(path).module()
    except Exception as error:  # PyTorch raises many kinds
        raise ArtifactError(
            f"PyTorch {torch.__version__} cannot open {path}: {type(error).__name__}: {error}; "
            f"{REMEDY}"
        ) from error
