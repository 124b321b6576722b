"""Length-prefixed pickles over a pair of pipes, and the messages that travel in them."""

from __future__ import annotations

import os
import pickle
import select
import struct
import time
from dataclasses import dataclass
from typing import Any

_HEADER = struct.Struct("<Q")
_CHUNK_BYTES = 1 << 20


class PeerGone(Exception):
    """The other end closed its pipe."""


class TooLate(Exception):
    """No whole message came in time."""


@dataclass(frozen=True)
class Start:
    """Parent to child, once: for what to compile and how to time."""

    target_json: dict[str, Any]
    threads: int
    spread_bytes: int
    memory_bytes: int
    seed: int


@dataclass(frozen=True)
class Register:
    """Parent to child: a workload, which candidates will refer to by its key."""

    key: str
    module: Any
    tolerance: float | None
    naive_first: bool


@dataclass(frozen=True)
class Build:
    """Parent to child: compile these scheduled modules (pickled), several at a time.

    The answer is a list: None for one that was built, else Failed. A Stage comes after each.
    """

    key: str
    modules: tuple[bytes, ...]


@dataclass(frozen=True)
class Measure:
    """Parent to child: check and time one module of the last Build."""

    key: str
    index: int
    best_s: float | None


@dataclass(frozen=True)
class Sentinel:
    """Parent to child: time the sentinel kernel again."""


@dataclass(frozen=True)
class Stage:
    """Child to parent: what it does from now on, so that a death can be explained."""

    name: str


@dataclass(frozen=True)
class Timed:
    """Child to parent: samples of one kernel in seconds."""

    samples_s: tuple[float, ...]
    cut_short: bool = False


@dataclass(frozen=True)
class Failed:
    """Child to parent: the candidate is no good, and why."""

    kind: str
    detail: str


def write_message(fd: int, message: Any) -> None:
    """Send one message whole."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    view = memoryview(_HEADER.pack(len(body)) + body)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BrokenPipeError as error:
            raise PeerGone from error


def read_message(fd: int, timeout_s: float | None = None) -> Any:
    """Receive one message; raises PeerGone, or TooLate after ``timeout_s`` seconds."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    (length,) = _HEADER.unpack(_read_exactly(fd, _HEADER.size, deadline))
    return pickle.loads(_read_exactly(fd, length, deadline))


def _read_exactly(fd: int, n_bytes: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < n_bytes:
        if deadline is not None:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
                raise TooLate
        part = os.read(fd, min(_CHUNK_BYTES, n_bytes - len(parts)))
        if not part:
            raise PeerGone
        parts += part
    return bytes(parts)
