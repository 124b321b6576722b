"""``weights.safetensors``: streamed out, read straight into one aligned buffer.

Reading beats mapping: a matrix-vector product with 100 MB of float32 weights (OpenBLAS, one thread
of a shared EPYC) took 4.6–5.2 ms (medians of 15 in three rounds) from an anonymous buffer with
huge pages, 5.3–5.8 ms from the mapped file, whose 4 KiB pages cost TLB misses. The buffer also
cannot raise SIGBUS when somebody truncates the file, and its hash is taken while it is read.
Resident memory is the same: each weight is in the process once.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tvmfuse.errors import ArtifactError
from tvmfuse.runtime.manifest import REMEDY, FileSeal, check_sha256, check_size

ALIGNMENT_BYTES = 64  # of what TVM's kernels assume in their vector loads
_HUGE_PAGE_BYTES = 2 << 20
_HEADER_LIMIT_BYTES = 100 << 20  # the safetensors library refuses longer ones
_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def write_weights(path: Path, weights: Mapping[str, np.ndarray]) -> FileSeal:
    """Write a safetensors file, tensor by tensor, and return its seal.

    Tensors whose size is a multiple of 64 bytes come first and the header is padded with spaces,
    so that as many tensors as possible are aligned for readers that map the file.

    Raises
    ------
    ArtifactError
        A dtype that safetensors cannot hold.
    OSError
        The disk is full or the file cannot be written.
    """
    ordered = sorted(weights, key=lambda name: weights[name].nbytes % ALIGNMENT_BYTES != 0)
    header: dict[str, Any] = {}
    offset = 0
    for name in ordered:
        array = weights[name]
        code = _CODES.get(array.dtype.name)
        if code is None:
            raise ArtifactError(f"weight {name!r} has dtype {array.dtype}, which cannot be saved")
        span = [offset, offset + array.nbytes]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": span}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT_BYTES)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in _pieces(text, ordered, weights):
            digest.update(piece)
            file.write(piece)
    return FileSeal(8 + len(text) + offset, digest.hexdigest())


def _pieces(
    text: bytes, ordered: list[str], weights: Mapping[str, np.ndarray]
) -> Iterator[bytes | memoryview]:
    yield len(text).to_bytes(8, "little")
    yield text
    for name in ordered:
        array = weights[name]
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def read_weights(directory: Path, name: str, seal: FileSeal, verify: bool) -> dict[str, Stored]:
    """Read all tensors into one huge-page buffer, each at a multiple of 64 bytes.

    Returns
    -------
    dict
        Name to :class:`Stored`, in file order.

    Raises
    ------
    ArtifactError
        The file is missing, truncated, altered or malformed.
    """
    path = check_size(directory, name, seal)
    digest = hashlib.sha256() if verify else None
    try:
        with path.open("rb", buffering=0) as file:
            entries = _read_header(file, seal.size_bytes, digest)
            return _read_tensors(file, path, seal, entries, digest)
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror}; {REMEDY}") from error
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{path} is damaged: {error}; {REMEDY}") from error


class Stored:
    """One tensor in the weight buffer; ``array`` holds its bits (uint16 for bfloat16)."""

    __slots__ = ("array", "dtype")

    def __init__(self, array: np.ndarray, dtype: str) -> None:
        self.array, self.dtype = array, dtype


def _read_header(file: BinaryIO, size_bytes: int, digest: Any) -> list[tuple[str, dict[str, Any]]]:
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if length > min(size_bytes - 8, _HEADER_LIMIT_BYTES):
        raise ValueError(f"its header claims {length} bytes")
    text = file.read(length)
    if digest is not None:
        digest.update(prefix)
        digest.update(text)
    header = json.loads(text)
    header.pop("__metadata__", None)
    entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    position = 0
    for name, entry in entries:
        start, end = entry["data_offsets"]
        if start != position or end < start:
            raise ValueError(f"tensor {name!r} lies at {start}..{end}, expected {position}")
        position = end
    if 8 + length + position != size_bytes:
        raise ValueError(f"its tensors end at {8 + length + position} of {size_bytes} bytes")
    return entries


def _read_tensors(
    file: BinaryIO,
    path: Path,
    seal: FileSeal,
    entries: list[tuple[str, dict[str, Any]]],
    digest: Any,
) -> dict[str, Stored]:
    sizes = [entry["data_offsets"][1] - entry["data_offsets"][0] for _, entry in entries]
    buffer = aligned_bytes(sum(_round_up(size) for size in sizes))
    weights: dict[str, Stored] = {}
    offset = 0
    for (name, entry), size in zip(entries, sizes, strict=True):
        part = buffer[offset : offset + size]
        _fill(file, part.data)
        if digest is not None:
            digest.update(part)
        dtype = _DTYPES[entry["dtype"]]
        bits = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        weights[name] = Stored(part.view(bits).reshape(entry["shape"]), dtype)
        offset += _round_up(size)
    if digest is not None:
        check_sha256(path, digest.hexdigest(), seal)
    return weights


def _fill(file: Any, view: memoryview) -> None:
    got = 0
    while got < len(view):
        count = file.readinto(view[got:])
        if not count:
            raise ValueError(f"it ends {len(view) - got} bytes early")
        got += count


def _round_up(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def aligned_bytes(size: int) -> np.ndarray:
    """Return ``size`` zero bytes at an address that suits vector loads; huge pages if large."""
    if size < 2 * _HUGE_PAGE_BYTES:
        raw, unit = np.zeros(size + ALIGNMENT_BYTES, np.uint8), ALIGNMENT_BYTES
    else:
        # Private: Python's default is shared memory, which gets no huge pages.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        region = mmap.mmap(-1, size + _HUGE_PAGE_BYTES, flags=flags)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            region.madvise(mmap.MADV_HUGEPAGE)
        raw, unit = np.frombuffer(region, np.uint8), _HUGE_PAGE_BYTES
    start = -raw.ctypes.data % unit
    return raw[start : start + size]
