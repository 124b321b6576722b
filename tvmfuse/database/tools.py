"""``tvmfuse log …``: look at logs and tidy them, on plain lines and without TVM."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tvmfuse.database.files import (
    HEADER,
    LINE_FILES,
    RECORDS,
    TASKS,
    VERDICTS,
    WORKLOADS,
    TaskState,
    mean,
    parse_record,
    parse_task,
    parse_workload,
    read_header,
    read_lines,
    replace_file,
    write_header,
    writer_lock,
)
from tvmfuse.database.verdicts import FusionVerdict, parse_verdict
from tvmfuse.errors import LogError


class _Content:
    """Parsed lines of one folder; damaged ones are counted and left out."""

    def __init__(self, folder: Path) -> None:
        self.broken = 0
        self.notes: list[str] = []
        self.workloads: dict[int, tuple[bytes, str]] = {}  # index -> line, hash
        self.records: list[tuple[int, float, bytes]] = []  # index, seconds, line
        self.tasks: dict[str, TaskState] = {}
        self.workload_lines = read_lines(folder / WORKLOADS, False, self.notes)
        for index, line in enumerate(self.workload_lines):
            if (parsed := self._try(parse_workload, line)) is not None:
                self.workloads[index] = (line, parsed[0])
        for line in read_lines(folder / RECORDS, False, self.notes):
            parsed = self._try(parse_record, line)
            if parsed is not None and parsed[0] in self.workloads:
                self.records.append((parsed[0], mean(parsed[1][1]), line))
            elif parsed is not None:
                self.broken += 1
        for line in read_lines(folder / TASKS, False, self.notes):
            if (state := self._try(parse_task, line)) is not None:
                self.tasks[state.task] = state
        self.verdicts: dict[str, FusionVerdict] = {}
        for line in read_lines(folder / VERDICTS, False, self.notes):
            if (verdict := self._try(parse_verdict, line)) is not None:
                self.verdicts[verdict.group] = verdict
        self.broken += len(self.notes)

    def _try(self, parse: Any, line: bytes) -> Any:
        try:
            return parse(line)
        except ValueError:
            self.broken += 1
            return None


def status(log_dir: Path) -> list[dict[str, Any]]:
    """Describe every log in a folder of logs.

    Returns
    -------
    list of dict
        Sorted by key: ``key``, ``folder``, ``header``, ``tasks`` (distinct kernels with records),
        ``records``, ``verdicts`` (groups measured against their parts), ``best`` (one dict a
        task: ``task, name, trials, complete, best_us``), ``size_bytes``, ``broken_lines``, and
        ``error`` where the header cannot be read.

    Raises
    ------
    LogError
        ``log_dir`` is a file. (One that does not exist yet simply holds no logs.)
    """
    if not log_dir.exists():
        return []
    if not log_dir.is_dir():
        raise LogError(f"no tuning logs in {log_dir}: it is not a folder")
    found = []
    for folder in sorted(p for p in log_dir.iterdir() if _is_log(p)):
        header, error = None, ""
        try:
            header = read_header(folder)
        except LogError as refused:
            error = str(refused)
        content = _Content(folder)
        names = (HEADER, *LINE_FILES)
        found.append(
            {
                "key": header["key"] if header else folder.name,
                "folder": str(folder),
                "header": header,
                "error": error,
                "tasks": len({content.workloads[i][1] for i, _, _ in content.records}),
                "records": len(content.records),
                "verdicts": len(content.verdicts),
                "best": _best(content),
                "size_bytes": sum(p.stat().st_size for n in names if (p := folder / n).exists()),
                "broken_lines": content.broken,
            }
        )
    return found


def _is_log(folder: Path) -> bool:
    return folder.is_dir() and any((folder / name).exists() for name in (HEADER, RECORDS))


def _best(content: _Content) -> list[dict[str, Any]]:
    """One row a task: from the records, with name and progress where a run stored them."""
    fastest: dict[str, float] = {}
    for index, seconds, _ in content.records:
        task = f"{int(content.workloads[index][1]):016x}"
        fastest[task] = min(seconds, fastest.get(task, seconds))
    rows = []
    for task in sorted({*fastest, *content.tasks}):
        state = content.tasks.get(task)
        rows.append(
            {
                "task": task,
                "name": state.name if state else "",
                "trials": state.trials if state else None,
                "complete": state.complete if state else False,
                "best_us": fastest[task] * 1e6 if task in fastest else None,
            }
        )
    return rows


def clear(folder: Path) -> int:
    """Remove a log's files, or those of all logs in a folder of logs; other files stay.

    Returns
    -------
    int
        How many bytes were freed.

    Raises
    ------
    LogError
        There is no log in the folder, or one has a writer or cannot be changed.
    """
    if _is_log(folder):
        return _clear_one(folder)
    logs = sorted(p for p in folder.iterdir() if _is_log(p)) if folder.is_dir() else []
    if not logs:
        raise LogError(f"{folder} holds no tuning log: there is no {HEADER} and no {RECORDS}")
    return sum(_clear_one(log) for log in logs)


def _clear_one(folder: Path) -> int:
    removed = 0
    with writer_lock(folder):
        # The header last: until then an interrupted clear is still a log that can be cleared.
        for name in (*LINE_FILES, *(f"{n}.torn" for n in LINE_FILES), HEADER):
            path = folder / name
            try:
                removed += path.stat().st_size if path.exists() else 0
                path.unlink(missing_ok=True)
            except OSError as error:
                raise LogError(f"cannot remove {path}: {error.strerror}") from error
    return removed


def distill(folder: Path, keep: int = 1) -> tuple[int, int]:
    """Keep the ``keep`` fastest records of each task; returns how many there were and are.

    Only the record file is replaced, at once, so that a crash leaves the old log or the new one.

    Raises
    ------
    LogError
        The folder is not a log, has a writer, or cannot be changed.
    ValueError
        ``keep`` is less than 1.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    _header_of(folder)
    with writer_lock(folder):
        content = _Content(folder)
        kept: dict[str, int] = {}
        lines = []
        for index, _, line in sorted(content.records, key=lambda record: record[1]):
            task = content.workloads[index][1]
            kept[task] = kept.get(task, 0) + 1
            if kept[task] <= keep:
                lines.append(line)
        replace_file(folder / RECORDS, _joined(lines))
    return len(content.records), len(lines)


def merge(sources: Sequence[Path], dest: Path) -> int:
    """Add the records of ``sources`` to ``dest`` and return how many it then has.

    A record that is there already is not added twice; of a task's states the one with the most
    trials is kept, of a group's verdicts that of ``dest``. Workloads without records are left out,
    so merging one log into a new folder is how to make a small copy.

    Raises
    ------
    LogError
        The logs differ in target, kind or TVM version, or ``dest`` has a writer.
    """
    if not sources:
        raise LogError("nothing to merge: no source was given")
    headers = [_header_of(source) for source in sources]
    for source, header in zip(sources, headers, strict=True):
        _check_same(source, header, sources[0], headers[0])
    with writer_lock(dest):
        old = read_header(dest)
        if old is None:
            write_header(dest, headers[0])
        else:
            _check_same(sources[0], headers[0], dest, old)
        contents = [_Content(folder) for folder in (dest, *sources)]
        workloads, records = _united(contents)
        tasks: dict[str, TaskState] = {}
        for content in contents:
            for task, state in content.tasks.items():
                if task not in tasks or state.trials > tasks[task].trials:
                    tasks[task] = state
        states = [json.dumps(asdict(s), separators=(",", ":")).encode() for s in tasks.values()]
        # A crash between these leaves a good log: workloads are only added, at the end.
        replace_file(dest / WORKLOADS, _joined(workloads))
        replace_file(dest / RECORDS, _joined(records))
        replace_file(dest / TASKS, _joined(states))
        verdicts: dict[str, FusionVerdict] = {}
        for content in reversed(contents):  # what the destination has stays
            verdicts |= content.verdicts
        if verdicts:
            lines = [json.dumps(v.to_json(), separators=(",", ":")) for v in verdicts.values()]
            replace_file(dest / VERDICTS, _joined([line.encode() for line in lines]))
    return len(records)


def _united(contents: list[_Content]) -> tuple[list[bytes], list[bytes]]:
    """Workload and record lines of several logs, each once; those of the first keep their index."""
    workloads = list(contents[0].workload_lines)
    number = {line: index for index, (line, _) in contents[0].workloads.items()}
    records: dict[bytes, None] = {}
    for content in contents:
        for index, _, line in content.records:
            workload = content.workloads[index][0]
            if workload not in number:
                number[workload] = len(workloads)
                workloads.append(workload)
            rest = line.split(b",", 1)[1].lstrip()
            records[b"[%d,%s" % (number[workload], rest)] = None
    return workloads, list(records)


def _header_of(folder: Path) -> dict[str, Any]:
    header = read_header(folder)
    if header is None:
        raise LogError(f"{folder} is not a tuning log: it has no {HEADER}")
    return header


def _check_same(source: Path, header: dict[str, Any], other: Path, first: dict[str, Any]) -> None:
    for what, get in (
        ("target", lambda h: h["key"]),
        ("kind", lambda h: h["kind"]),
        ("TVM version", lambda h: h["versions"].get("tvm")),
    ):
        if get(header) != get(first):
            raise LogError(
                f"cannot merge {source} ({what} {get(header)}) with {other} ({what} {get(first)})"
            )


def _joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)
