"""The files of one log: headers, crash-safe lines, and the lock of the single writer."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tvmfuse.errors import LogError
from tvmfuse.hardware import Hardware

SCHEMA = 1
MEASURED, ESTIMATED = "measured", "estimated"
HEADER = "header.json"
WORKLOADS = "database_workload.json"  # this and the next name are MetaSchedule's
RECORDS = "database_tuning_record.json"
TASKS = "database_task.json"
VERDICTS = "database_fusion.json"
LINE_FILES = (WORKLOADS, RECORDS, TASKS, VERDICTS)
LOCK, HOLDER = ".lock", ".lock-holder.json"


@dataclass(frozen=True)
class TaskState:
    """How far a task was tuned.

    Parameters
    ----------
    task
        Its structural hash, see :func:`tvmfuse.database.task_hash`.
    name
        For people.
    trials
        Measured so far, in all runs.
    asked
        What the run asked for, e.g. ``{"trials": 64}`` or ``{"seconds": 600}``.
    complete
        Whether it got what it asked for.
    best_us
        Microseconds of the best trial; None when all failed.
    """

    task: str
    name: str
    trials: int
    asked: dict[str, float]
    complete: bool
    best_us: float | None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TaskState:
        """Inverse of ``dataclasses.asdict``; raises KeyError, TypeError or ValueError."""
        best = data["best_us"]
        return cls(
            task=str(data["task"]),
            name=str(data["name"]),
            trials=int(data["trials"]),
            asked=dict(data["asked"]),
            complete=bool(data["complete"]),
            best_us=None if best is None else float(best),
        )


def parse_record(line: bytes) -> tuple[int, list[Any]]:
    """Return workload index and ``[trace, seconds, target, arguments]``; raises ValueError."""
    data = json.loads(line)
    if not (isinstance(data, list) and len(data) == 2 and isinstance(data[0], int)):
        raise ValueError("no [workload, record] pair")
    index, record = data
    if not (isinstance(record, list) and len(record) == 4 and isinstance(record[1], list)):
        raise ValueError("no [trace, seconds, target, arguments]")
    if not record[1] or not all(isinstance(s, (int, float)) and s > 0 for s in record[1]):
        raise ValueError(f"bad seconds {record[1]!r}")
    return index, record


def parse_workload(line: bytes) -> tuple[str, str]:
    """Return structural hash and encoded module; raises ValueError."""
    data = json.loads(line)
    if not (isinstance(data, list) and len(data) == 2 and all(isinstance(d, str) for d in data)):
        raise ValueError("no [hash, module] pair")
    return data[0], data[1]


def parse_task(line: bytes) -> TaskState:
    """Raises ValueError."""
    try:
        return TaskState.from_json(json.loads(line))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no task: {error!r}") from error


def mean(seconds: list[float]) -> float:
    """What MetaSchedule ranks records by."""
    return sum(seconds) / len(seconds)


def read_lines(path: Path, repair: bool, notes: list[str]) -> list[bytes]:
    """Return the whole lines of a file; a torn last one is left out and told in ``notes``.

    With ``repair`` (which needs the lock) the torn text is moved to ``<file>.torn``. Without it
    the file is left alone: the line may be one that another process is writing right now.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror}") from error
    *lines, tail = data.split(b"\n")
    if not tail:
        return lines
    if _is_json(tail):  # only the newline is missing
        lines.append(tail)
        if repair:
            with _explained(path), path.open("ab") as file:
                file.write(b"\n")
    elif repair:
        torn = path.with_name(path.name + ".torn")
        with _explained(path):
            with torn.open("ab") as file:
                file.write(tail + b"\n")
            os.truncate(path, len(data) - len(tail))
        notes.append(
            f"{path}: the last line was torn ({len(tail)} bytes, from a killed run); "
            f"moved to {torn.name}"
        )
    else:
        notes.append(
            f"{path}: ignored a torn last line ({len(tail)} bytes); the next tuning run repairs it"
        )
    return lines


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogError(
            f"cannot write {path}: {error.strerror}; what is already stored stays good"
        ) from error


class Appender:
    """Appends whole lines to one file: all of a line or nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _explained(path):
            self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def append(self, line: bytes) -> None:
        """Write the line and its newline; raises LogError and takes back what was written."""
        size = os.fstat(self._handle).st_size
        rest = memoryview(line + b"\n")
        with _explained(self.path):
            try:
                while rest:
                    rest = rest[os.write(self._handle, rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._handle, size)
                raise

    def sync(self) -> None:
        """Have the disk hold what was appended."""
        with _explained(self.path):
            os.fsync(self._handle)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old or the new one; raises LogError."""
    partial = path.with_name(path.name + ".partial")
    with _explained(path):
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def versions() -> dict[str, str]:
    """Versions of TVM and of this package, read without importing either."""
    found = {}
    for name, dist in (("tvm", "apache-tvm"), ("tvmfuse", "tvmfuse")):
        try:
            found[name] = importlib.metadata.version(dist)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def make_header(hardware: Hardware, kind: str) -> dict[str, Any]:
    """Header of a new log."""
    return {
        "schema": SCHEMA,
        "kind": kind,
        "key": hardware.key,
        "target": hardware.target_json,
        "hardware": asdict(hardware),
        "versions": versions(),
    }


def write_header(folder: Path, header: dict[str, Any]) -> None:
    """Create or replace ``header.json``."""
    text = json.dumps(header, indent=1, sort_keys=True) + "\n"
    replace_file(folder / HEADER, text.encode())


def read_header(folder: Path) -> dict[str, Any] | None:
    """Return the header, or None for a folder without a log; raises LogError on a damaged one."""
    path = folder / HEADER
    try:
        header = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if (folder / RECORDS).exists():
            raise LogError(
                f"{folder} has records but no {HEADER}, so it is not known for which target; "
                "restore the header or move the folder away"
            ) from None
        return None
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise LogError(
            f"{path} is damaged ({error}); restore it or move the folder away"
        ) from error
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        found = header.get("schema") if isinstance(header, dict) else header
        raise LogError(f"{path} has schema {found!r}, this tvmfuse reads {SCHEMA}")
    if not {"kind", "key", "versions"} <= header.keys():
        raise LogError(f"{path} is damaged: it lacks kind, key or versions")
    return header


def check_header(folder: Path, header: dict[str, Any], key: str, kind: str) -> None:
    """Raise LogError where a log is another target's or of another kind."""
    if (header["key"], header["kind"]) != (key, kind):
        raise LogError(
            f"{folder} holds {header['kind']} records for target {header['key']}; asked for "
            f"{kind} records for target {key}. Records of two targets or kinds never mix: choose "
            "another --log-dir"
        )


@contextlib.contextmanager
def writer_lock(folder: Path) -> Iterator[None]:
    """Hold a log as its only writer; raises LogError naming the process that has it."""
    try:
        from filelock import FileLock, Timeout
    except ImportError as error:
        raise LogError("writing a tuning log needs the package filelock") from error
    with _explained(folder / LOCK):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise LogError(
                f"{folder} is being written by {_holder(folder)}; wait for it, stop it, or give "
                "another --log-dir"
            ) from None
    try:
        me = {"pid": os.getpid(), "host": socket.gethostname()}
        replace_file(folder / HOLDER, json.dumps(me).encode())
        yield
    finally:
        with contextlib.suppress(OSError):
            (folder / HOLDER).unlink(missing_ok=True)
        lock.release()


def _holder(folder: Path) -> str:
    try:
        holder = json.loads((folder / HOLDER).read_bytes())
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
