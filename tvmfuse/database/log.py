"""``TuningLog``: look up, commit, and know how far each task was tuned.

MetaSchedule's ``JSONDatabase`` writes the same files but is not used: it decodes every trace on
opening (2.4 s for 1000 records of 17 steps, where this took 0.1 s for 5000), cannot be opened
after a torn line, and ignores the target.
"""

from __future__ import annotations

import contextlib
import json
import math
import pickle
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmfuse.database.files import (
    HEADER,
    LINE_FILES,
    MEASURED,
    RECORDS,
    TASKS,
    VERDICTS,
    WORKLOADS,
    Appender,
    TaskState,
    check_header,
    make_header,
    mean,
    parse_record,
    parse_task,
    parse_workload,
    read_header,
    read_lines,
    versions,
    write_header,
    writer_lock,
)
from tvmfuse.database.verdicts import FusionVerdict, parse_verdict
from tvmfuse.errors import LogError
from tvmfuse.hardware import Hardware

if TYPE_CHECKING:
    from tvm import IRModule
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace


def task_hash(mod: IRModule) -> str:
    """Structural hash of a task's module, as sixteen hexadecimal digits."""
    return f"{int(_structural_hash(mod)):016x}"


def _structural_hash(mod: IRModule) -> str:
    """The hash as MetaSchedule writes it into its workload file: unsigned, decimal."""
    import tvm_ffi

    return str(tvm_ffi.structural_hash(mod) % 2**64)


@dataclass(frozen=True)
class Record:
    """One measured candidate.

    Parameters
    ----------
    seconds
        Mean of its measurements.
    run_s
        The measurements.
    source
        Folder of the log it comes from.
    line
        Its text in the log.
    """

    seconds: float
    run_s: tuple[float, ...]
    source: Path
    line: bytes = field(repr=False)

    def schedule(self, mod: IRModule) -> Schedule:
        """Replay the trace on ``mod``.

        Raises
        ------
        LogError
            The trace does not apply: the record is damaged, or TVM's primitives changed.
        """
        from tvm.s_tir import Schedule
        from tvm.s_tir.schedule import Trace

        # A copy, because a Schedule can rewrite the body that ``mod`` shares with others.
        schedule = Schedule(pickle.loads(pickle.dumps(mod)))
        try:
            Trace.apply_json_to_schedule(parse_record(self.line)[1][0], schedule)
        except Exception as error:  # TVM raises many kinds here
            raise LogError(
                f"a record of {self.seconds * 1e6:.1f} us in {self.source} does not apply to its "
                f"own workload: {str(error).strip().splitlines()[-1]}"
            ) from error
        return schedule


class _Store:
    """What one folder holds: texts are parsed on opening, modules are decoded when asked for."""

    def __init__(self, folder: Path, repair: bool, notes: list[str]) -> None:
        self.folder, self._notes = folder, notes
        self.tasks: dict[str, TaskState] = {}
        self.verdicts: dict[str, FusionVerdict] = {}
        self.size = 0  # records
        self._encoded: list[tuple[str, str] | None] = []  # by workload index; None: damaged
        self._decoded: dict[int, Any] = {}
        self._by_hash: dict[str, list[int]] = {}
        self._records: dict[int, list[Record]] = {}
        readers = (
            (WORKLOADS, self.add_workload), (RECORDS, self.add_record), (TASKS, self._task),
            (VERDICTS, self._verdict),
        )  # fmt: skip
        for name, add in readers:
            damaged = []
            for number, line in enumerate(read_lines(folder / name, repair, notes), 1):
                try:
                    add(line)
                except (ValueError, IndexError):
                    damaged.append(number)
                    if name == WORKLOADS:  # later lines keep their index
                        self._encoded.append(None)
            if damaged:
                shown = ", ".join(map(str, damaged[:8])) + (" …" if len(damaged) > 8 else "")
                notes.append(f"{folder / name}: skipped {len(damaged)} damaged lines: {shown}")

    def add_workload(self, line: bytes) -> int:
        digest, encoded = parse_workload(line)
        self._encoded.append((digest, encoded))
        index = len(self._encoded) - 1
        self._by_hash.setdefault(digest, []).append(index)
        return index

    def add_record(self, line: bytes) -> Record:
        index, (_, run_s, _, _) = parse_record(line)
        if index < 0 or self._encoded[index] is None:
            raise IndexError(index)
        record = Record(mean(run_s), tuple(run_s), self.folder, line)
        self._records.setdefault(index, []).append(record)
        self.size += 1
        return record

    def _task(self, line: bytes) -> None:
        state = parse_task(line)
        self.tasks[state.task] = state

    def _verdict(self, line: bytes) -> None:
        verdict = parse_verdict(line)
        self.verdicts[verdict.group] = verdict

    def find(self, mod: IRModule) -> list[int]:
        """Indices of the workloads that equal ``mod``; more than one only after a merge."""
        import tvm_ffi

        indices = self._by_hash.get(_structural_hash(mod), ())
        return [i for i in indices if tvm_ffi.structural_equal(self._decode(i), mod)]

    def _decode(self, index: int) -> Any:
        from tvm.s_tir.meta_schedule.database import Workload

        if index not in self._decoded:
            encoded = self._encoded[index]
            try:
                self._decoded[index] = Workload.from_json(list(encoded or ())).mod
            except Exception as error:  # base64, JSON, and whatever TVM makes of damaged nodes
                self._decoded[index] = None
                where = f"{self.folder / WORKLOADS}: line {index + 1}"
                reason = str(error).strip().splitlines()[-1:]
                self._notes.append(f"{where} cannot be decoded, its records are lost: {reason}")
        return self._decoded[index]

    def records(self, mod: IRModule) -> list[Record]:
        return [r for index in self.find(mod) for r in self._records.get(index, ())]


class TuningLog:
    """The records of one target; open it with :meth:`open`, use it in a ``with`` statement.

    Attributes
    ----------
    notes : list of str
        What was repaired, skipped or ignored; the caller prints them.
    folder : Path
        Where the log is.
    """

    def __init__(self, folder: Path, hardware: Hardware, kind: str) -> None:
        """Not for callers: :meth:`open` also locks, checks and repairs."""
        self.folder, self.hardware, self.kind = folder, hardware, kind
        self.notes: list[str] = []
        self._open = contextlib.ExitStack()
        self._stores: list[_Store] = []  # the own one first
        self._own: _Store | None = None
        self._files: dict[str, Appender] = {}
        self._has_header = False
        self.writable = False

    @classmethod
    def open(
        cls,
        folder: Path,
        hardware: Hardware,
        write: bool,
        *,
        shipped: Path | None = None,
        kind: str = MEASURED,
    ) -> TuningLog:
        """Open a log; a folder that does not exist yet is an empty one.

        Parameters
        ----------
        folder
            ``<log_dir>/<hardware.key>``.
        hardware
            The target; a log of another key is refused.
        write
            Lock the log for committing. Reading needs no lock and never changes a file.
        shipped
            A read-only log of the same target to look in as well.
        kind
            ``MEASURED`` or ``ESTIMATED``; the two never share a log.

        Raises
        ------
        LogError
            The log is another target's or of another kind, has another writer, or cannot be
            read or written.
        """
        log = cls(Path(folder), hardware, kind)
        try:
            if write:
                log._open.enter_context(writer_lock(log.folder))
            log._own = log._load(log.folder, repair=write)
            log._has_header = log._own is not None
            if write and log._own is None:
                log._own = _Store(log.folder, True, log.notes)
                log._stores.append(log._own)
            if shipped is not None:
                log._load(Path(shipped), repair=False)
        except BaseException:
            log._open.close()
            raise
        log.writable = write
        return log

    def _load(self, folder: Path, repair: bool) -> _Store | None:
        """Read one folder; None where there is no log that this TVM can use."""
        header = read_header(folder)
        if header is None:
            return None
        check_header(folder, header, self.hardware.key, self.kind)
        theirs, ours = header["versions"].get("tvm"), versions()["tvm"]
        if theirs != ours:
            # Hashes and schedule primitives change between releases: a hit could be a wrong one.
            said = f"{folder} was written with TVM {theirs}, this is {ours}: its records are unused"
            if repair:
                aside = _set_aside(folder, f"tvm-{theirs}")
                said += f" and were moved to {aside.name}/"
            self.notes.append(said)
            return None
        store = _Store(folder, repair, self.notes)
        self._stores.append(store)
        return store

    def __enter__(self) -> TuningLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Have the disk hold everything, and let the next writer in."""
        self.writable = False
        try:
            for file in self._files.values():
                file.sync()
        finally:
            for file in self._files.values():
                file.close()
            self._files.clear()
            self._open.close()

    def __len__(self) -> int:
        """Number of records, shipped ones included."""
        return sum(store.size for store in self._stores)

    def has(self, mod: IRModule) -> bool:
        """Whether there is a record of ``mod``."""
        return self.best(mod) is not None

    def best(self, mod: IRModule) -> Record | None:
        """Return the fastest record of ``mod``, own or shipped."""
        return next(iter(self.records(mod, 1)), None)

    def records(self, mod: IRModule, k: int) -> list[Record]:
        """Return the ``k`` fastest records of ``mod``, own and shipped, fastest first."""
        found = [record for store in self._stores for record in store.records(mod)]
        return sorted(found, key=lambda record: record.seconds)[:k]

    def commit(self, mod: IRModule, trace: Trace, seconds: list[float]) -> Record:
        """Store one measured candidate.

        Parameters
        ----------
        mod
            The task's module, before scheduling.
        trace
            What turns it into the candidate.
        seconds
            Its measurements; failures are not stored.

        Raises
        ------
        LogError
            The disk is full or the file cannot be written; everything stored before stays good.
        ValueError
            ``seconds`` is empty, or one of them is not a positive finite number.
        """
        from tvm.s_tir.meta_schedule.arg_info import ArgInfo
        from tvm.s_tir.meta_schedule.database import TuningRecord, Workload
        from tvm.target import Target

        if not seconds or not all(math.isfinite(s) and s > 0 for s in seconds):
            raise ValueError(f"seconds must be positive and finite, got {seconds}")
        own = self._for_writing()
        workload = Workload(mod)
        found = own.find(mod)
        if found:
            index = found[0]
        else:
            line = _dump(workload.as_json())
            self._append(WORKLOADS, line)
            index = own.add_workload(line)
        target = Target(self.hardware.target_json)
        arguments = ArgInfo.from_entry_func(mod, True)
        record = TuningRecord(trace, workload, list(seconds), target, arguments)
        line = _dump([index, record.as_json()])
        self._append(RECORDS, line)
        return own.add_record(line)

    def task_state(self, task: str) -> TaskState | None:
        """Return how far a task (see :func:`task_hash`) was tuned, here or else as shipped."""
        states = (store.tasks.get(task) for store in self._stores)
        return next((state for state in states if state is not None), None)

    def set_task_state(self, state: TaskState) -> None:
        """Store how far a task is, and have the disk hold all that was committed so far."""
        own = self._for_writing()
        self._append(TASKS, _dump(asdict(state)))
        own.tasks[state.task] = state
        for file in self._files.values():
            file.sync()

    def verdict(self, group: str) -> FusionVerdict | None:
        """Return what was measured of a group, here or else as shipped."""
        found = (store.verdicts.get(group) for store in self._stores)
        return next((verdict for verdict in found if verdict is not None), None)

    def set_verdict(self, verdict: FusionVerdict) -> None:
        """Store what was measured of a group; a later verdict takes the place of this one."""
        own = self._for_writing()
        self._append(VERDICTS, _dump(verdict.to_json()))
        own.verdicts[verdict.group] = verdict

    def _for_writing(self) -> _Store:
        if not self.writable or self._own is None:
            raise LogError(f"{self.folder} is not open for writing")
        return self._own

    def _append(self, name: str, line: bytes) -> None:
        if not self._has_header:
            write_header(self.folder, make_header(self.hardware, self.kind))
            self._has_header = True
        if name not in self._files:
            self._files[name] = Appender(self.folder / name)
        self._files[name].append(line)


def _dump(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def _set_aside(folder: Path, name: str) -> Path:
    aside = folder / name
    number = 1
    while aside.exists():
        number += 1
        aside = folder / f"{name}-{number}"
    try:
        aside.mkdir()
        for part in (*LINE_FILES, HEADER):  # the header last: it is what makes a folder a log
            if (folder / part).exists():
                (folder / part).rename(aside / part)
    except OSError as error:
        raise LogError(f"cannot move the old log to {aside}: {error.strerror}") from error
    return aside
