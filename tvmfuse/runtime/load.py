"""``load``: from an artifact folder to something one can call."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmfuse.errors import ArtifactError, InputError
from tvmfuse.hardware import runnable_here
from tvmfuse.runtime.arguments import Marshal
from tvmfuse.runtime.library import ensure_runtime
from tvmfuse.runtime.manifest import (
    LIBRARY,
    REMEDY,
    STATE_PREFIX,
    WEIGHTS,
    FileSeal,
    Manifest,
    check_sha256,
    check_size,
    read_manifest,
    sha256_of,
)
from tvmfuse.runtime.threads import ModelThreads
from tvmfuse.runtime.weights import Stored, read_weights

_CPU, _DEVICE, _POOLED = 1, 0, 2  # DLPack's device type, its index, TVM's pooling allocator
_opened: dict[Path, list[str]] = {}  # sha256 of each library that this process opened at a path


class LoadedModel:
    """A compiled model, ready to run; made by :func:`load`.

    Calls may come from several Python threads: they run one after another. A model that changes
    its own buffers (a cache of keys and values, say) keeps them from call to call; whoever needs
    several independent states loads the artifact several times.
    """

    def __init__(
        self, directory: Path, manifest: Manifest, threads: int | None, verify: bool
    ) -> None:
        self.directory = directory
        self.manifest = manifest
        ffi = ensure_runtime(directory, manifest, verify)
        self._ffi = ffi
        self._threads = ModelThreads(ffi, threads)
        self._marshal = Marshal(ffi, manifest.signature)
        stored = read_weights(directory, WEIGHTS, _seal(manifest, WEIGHTS), verify)
        self._weights = ffi.Array([self._tensor(ffi, stored, name) for name in manifest.weights])
        self._initial = [
            self._tensor(ffi, stored, f"{STATE_PREFIX}{name}") for name in manifest.states
        ]
        self._states: list[Any] = list(self._initial)
        self._borrowed = _ranges(entry.array for entry in stored.values())
        self._machine = _open_library(ffi, directory, manifest, verify)
        # A function looked up once keeps its VM alive and saves the look-up in every call.
        self._main = self._machine["main"]

    @property
    def signature(self) -> Any:
        """Inputs and outputs: :class:`tvmfuse.signature.Signature`."""
        return self.manifest.signature

    @property
    def threads(self) -> int:
        """Threads that each kernel of this model uses."""
        return self._threads.count

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model.

        Parameters
        ----------
        args, kwargs
            The arguments of the original module: NumPy arrays, torch tensors or other CPU tensors
            with DLPack. Contiguous memory at a multiple of 64 bytes is used as it is, everything
            else is copied once. What the model was compiled with by keyword is passed by keyword,
            everything else by position or by keyword.

        Returns
        -------
        Any
            The original module's output structure; torch tensors if any argument was one, NumPy
            arrays otherwise. It stays valid for as long as the caller keeps it.

        Raises
        ------
        InputError
            An argument has the wrong type, dtype, shape or structure.
        """
        return self._threads.run(self._run, self._marshal.bind(args, kwargs))

    @property
    def states(self) -> dict[str, np.ndarray]:
        """Copies of the buffers that the model changes, by name, as the last call left them."""
        return self._threads.run(self._copied_states)

    def reset(self) -> None:
        """Put the buffers that the model changes back to what they held when it was compiled."""
        self._threads.run(self._reset)

    def watch(self, args: tuple[Any, ...], see: Callable[[int, str, Sequence[Any]], None]) -> Any:
        """Run once and look at what every kernel reads and writes; for verification.

        Parameters
        ----------
        args
            All arguments in the order of the signature's tree.
        see
            Called behind each kernel with its number, its name, and its tensors, the output
            last; they are only valid until it returns.

        Returns
        -------
        Any
            What a call returns. The state stays as it was.
        """
        kernels = {kernel for kernel, _ in self.manifest.layers}
        count = itertools.count()
        failed: list[BaseException] = []

        def instrument(_: Any, name: str, before: bool, __: Any, *tensors: Any) -> int:
            if not before and name in kernels and not failed:
                try:
                    see(next(count), name, tensors)
                except BaseException as error:  # not through the VM's own frames
                    failed.append(error)
            return 0

        result = self._instrumented(args, instrument)
        if failed:
            raise failed[0]
        return result

    def clock(self, args: tuple[Any, ...]) -> list[tuple[str, float]]:
        """Run once and time every kernel; the state stays as it was.

        Parameters
        ----------
        args
            All arguments in the order of the signature's tree.

        Returns
        -------
        list
            Name and seconds of each kernel call, in order. A call's seconds hold about a
            microsecond of the clock's own.
        """
        kernels = {kernel for kernel, _ in self.manifest.layers}
        begin, found = [0.0], list[tuple[str, float]]()

        def instrument(_: Any, name: str, before: bool, *__: Any) -> int:
            if before:
                begin[0] = time.perf_counter()
                return 0
            seconds = time.perf_counter() - begin[0]
            if name in kernels:
                found.append((name, seconds))
            return 0

        self._instrumented(args, instrument)
        return found

    def _instrumented(self, args: tuple[Any, ...], instrument: Callable[..., int]) -> Any:
        before = self._states
        self._machine["set_instrument"](self._ffi.convert(instrument))
        try:
            return self._threads.run(self._run, args)
        finally:
            self._machine["set_instrument"](None)
            self._states = before

    def _run(self, args: tuple[Any, ...]) -> Any:
        tensors, torch = self._marshal.tensors(args)
        self._marshal.check(tensors, self.manifest.bounds)
        returned = list(self._main(*self._states, *tensors, self._weights))
        count, checks = len(self._states), self.manifest.checks
        states, flags = returned[:count], returned[count : count + len(checks)]
        for flag, message in zip(flags, checks, strict=True):
            if np.from_dlpack(flag).item():
                raise InputError(f"{message}; the call changed nothing")
        outputs = returned[count + len(checks) :]
        borrowed = self._borrowed + [_range(t) for t in (*tensors, *self._states, *states)]
        # A new state may be the caller's own array (a buffer that an argument replaces).
        given = {tensor.data_ptr() for tensor in tensors}
        results = self._marshal.results(outputs, borrowed, torch)
        self._states = [self._marshal.copy(s) if s.data_ptr() in given else s for s in states]
        return results

    def _reset(self) -> None:
        self._states = list(self._initial)

    def _copied_states(self) -> dict[str, np.ndarray]:
        return {
            name: self._marshal.array(state)
            for name, state in zip(self.manifest.states, self._states, strict=True)
        }

    def _tensor(self, ffi: Any, stored: dict[str, Stored], name: str) -> Any:
        if name not in stored:
            raise ArtifactError(
                f"{self.directory / WEIGHTS} has no tensor {name!r}, which the manifest lists; "
                f"{REMEDY}"
            )
        entry = stored[name]
        tensor = ffi.from_dlpack(entry.array)
        return self._marshal.retype(tensor, "bfloat16") if entry.dtype == "bfloat16" else tensor

    def __repr__(self) -> str:
        manifest = self.manifest
        inputs = ", ".join(str(spec) for spec in manifest.signature.inputs)
        outputs = ", ".join(str(spec) for spec in manifest.signature.outputs)
        versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
        lines = [
            f"LoadedModel({str(self.directory)!r})",
            f"  signature   ({inputs}) -> ({outputs})",
            f"  target      {manifest.target_key} {manifest.target_json}",
            f"  needs       {' '.join(manifest.features) or 'no special CPU features'}",
            f"  runs on     {self.threads} threads, {manifest.kernels} kernels, "
            f"{len(manifest.weights)} weights",
            f"  built with  {versions}",
        ]
        lines += [f"  {key:<11} {value}" for key, value in manifest.provenance.items()]
        return "\n".join(lines)


def load(
    directory: str | Path, threads: int | None = None, verify_hashes: bool = True
) -> LoadedModel:
    """Open an artifact; needs neither torch nor the compiler.

    Parameters
    ----------
    directory
        The artifact's folder.
    threads
        Threads for each kernel of this model; by default the CPUs this process may use. Models
        with different counts may live in one process.
    verify_hashes
        Compare the sha256 of every file with the manifest. Sizes are always compared.

    Raises
    ------
    ArtifactError
        A file is missing, truncated or altered, or versions do not fit, or the CPU lacks features,
        or it was built for a GPU.
    OptionError
        ``threads`` cannot be had here.
    """
    folder = Path(directory)
    manifest = read_manifest(folder)
    if manifest.gpu:
        raise ArtifactError(
            f"{folder} holds kernels for {manifest.gpu['name']} ({manifest.gpu['arch']}), "
            f"{manifest.gpu['state']}: this release builds GPU kernels and cannot serve them yet, "
            "on any machine; its device code is in the cubin inside model.so. For a CPU, compile "
            "the model with --target llvm"
        )
    fits = runnable_here(manifest.features)
    if not fits:
        raise ArtifactError(
            f"{folder} was built for {manifest.target_key} and cannot run here: {fits.reason}; "
            "rebuild it for this machine or for an older CPU"
        )
    return LoadedModel(folder, manifest, threads, verify_hashes)


def _seal(manifest: Manifest, name: str) -> FileSeal:
    if name not in manifest.files:
        raise ArtifactError(f"the manifest does not list {name}; {REMEDY}")
    return manifest.files[name]


def _open_library(ffi: Any, directory: Path, manifest: Manifest, verify: bool) -> Any:
    seal = _seal(manifest, LIBRARY)
    path = check_size(directory, LIBRARY, seal)
    if verify:
        check_sha256(path, sha256_of(path), seal)
    try:
        name = _fresh_name(path.absolute(), seal)
        machine = ffi.load_module(name)["vm_load_executable"]()
        machine["vm_initialization"](_CPU, _DEVICE, _POOLED)
        return machine
    except (RuntimeError, OSError, AttributeError) as error:
        raise ArtifactError(
            f"cannot open {path}: {error}; it was built for {manifest.target_key}; {REMEDY}"
        ) from error


def _fresh_name(path: Path, seal: FileSeal) -> str:
    """Spell the path anew for every content it has had.

    dlopen goes by the name and would hand out the old code of an artifact that was replaced.
    """
    contents = _opened.setdefault(path, [])
    if seal.sha256 not in contents:
        contents.append(seal.sha256)
    return f"{path.parent}{'/.' * contents.index(seal.sha256)}/{path.name}"


def _range(tensor: Any) -> tuple[int, int]:
    address = tensor.data_ptr()
    return address, address + 1


def _ranges(arrays: Any) -> list[tuple[int, int]]:
    """One range that covers all weights, which lie in one buffer; none without weights."""
    spans = [(array.ctypes.data, array.ctypes.data + array.nbytes) for array in arrays]
    return [(min(low for low, _ in spans), max(high for _, high in spans))] if spans else []
