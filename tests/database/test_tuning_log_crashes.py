"""Killed writers, two writers, full disks, unwritable folders, damaged lines."""

import os
import resource
import signal
import subprocess
import sys
import textwrap

import pytest

from tvmfuse.database import TaskState, TuningLog, task_hash
from tvmfuse.errors import LogError

LINES = ["database_workload.json", "database_tuning_record.json", "database_task.json"]


def _full_log(tasks, folder):
    tasks.fill(folder, sizes=(16, 32))
    with TuningLog.open(folder, tasks.HARDWARE, True) as log:
        for n in (16, 32):
            task = task_hash(tasks.matmul(n))
            log.set_task_state(TaskState(task, f"matmul{n}", 3, {"trials": 3}, True, 333.3))
    return folder


@pytest.mark.parametrize("name", LINES)
def test_torn_last_line_is_repaired_by_a_writer(tasks, tmp_path, name):
    folder = _full_log(tasks, tmp_path / "log")
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    torn = whole[:-10].rsplit(b"\n", 1)[1]
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        assert any(name in n and "ignored a torn last line" in n for n in log.notes)
    assert path.read_bytes() == whole[:-10]
    with TuningLog.open(folder, tasks.HARDWARE, True) as log:
        assert any(name in n and "moved to" in n for n in log.notes)
        assert log.has(tasks.matmul(16))
    assert (folder / f"{name}.torn").read_bytes() == torn + b"\n"
    assert path.read_bytes() == whole[: len(whole[:-10]) - len(torn)]


def test_missing_newline_is_added(tasks, tmp_path):
    folder = tasks.fill(tmp_path / "log")
    path = folder / LINES[1]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with TuningLog.open(folder, tasks.HARDWARE, True) as log:
        assert log.notes == [] and len(log) == 3
    assert path.read_bytes() == whole


@pytest.mark.parametrize("damage", [b"not json", b"[1]", b"[99,[[],[1.0],{},[]]]", b"\x00\xff"])
def test_damaged_middle_line_is_skipped(tasks, tmp_path, damage):
    folder = tasks.fill(tmp_path / "log", sizes=(16, 32))
    path = folder / LINES[1]
    lines = path.read_bytes().split(b"\n")
    lines[1] = damage
    path.write_bytes(b"\n".join(lines))
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        assert len(log) == 5
        assert log.notes == [f"{path}: skipped 1 damaged lines: 2"]


@pytest.mark.parametrize("damage", [b"rubbish", b'["1","AAAA"]'])
def test_damaged_workload_costs_only_its_own_records(tasks, tmp_path, damage):
    folder = tasks.fill(tmp_path / "log", sizes=(16, 32))
    path = folder / LINES[0]
    _first, second, end = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([damage, second, end]))
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        assert not log.has(tasks.matmul(16))
        assert log.best(tasks.matmul(32)).seconds == pytest.approx(1e-3 / 3)


def test_workload_that_does_not_decode_is_said(tasks, tmp_path):
    folder = tasks.fill(tmp_path / "log")
    path = folder / LINES[0]
    digest = path.read_bytes().split(b'"')[1].decode()
    path.write_text(f'["{digest}","AAAA"]\n')
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        assert not log.has(tasks.matmul())
        assert any("line 1 cannot be decoded" in note for note in log.notes)


def _python(code, tests, **options):
    prelude = f"""
    import importlib.util
    from pathlib import Path
    from tvmfuse.database import TuningLog
    from tvmfuse.errors import LogError
    spec = importlib.util.spec_from_file_location("tasks", {tests.__file__!r})
    tasks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tasks)
    """
    text = textwrap.dedent(prelude) + textwrap.dedent(code)
    command = [sys.executable, "-u", "-c", text]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def test_killed_writer_loses_nothing_it_committed(tasks, tmp_path):
    code = f"""
    log = TuningLog.open(Path({str(tmp_path / "log")!r}), tasks.HARDWARE, True)
    mod, trace = tasks.matmul(), tasks.trace(tasks.matmul(), 4)
    for i in range(1000000):
        log.commit(mod, trace, [1e-3])
        print(i + 1)
    """
    child = _python(code, tasks)
    try:
        for line in child.stdout:
            if int(line) == 20:
                child.send_signal(signal.SIGKILL)
                break
        said = [20, *map(int, child.stdout.read().split())][-1]
    finally:
        child.kill()
        child.wait()
    with TuningLog.open(tmp_path / "log", tasks.HARDWARE, True) as log:
        assert len(log) >= said
        log.commit(tasks.matmul(), tasks.trace(tasks.matmul(), 2), [1e-6])
        assert log.best(tasks.matmul()).seconds == pytest.approx(1e-6)


def test_second_writer_is_told_who_the_first_is(tasks, tmp_path):
    folder = tasks.fill(tmp_path / "log")
    code = f"""
    with TuningLog.open(Path({str(folder)!r}), tasks.HARDWARE, True):
        print("open", flush=True)
        input()
    """
    child = _python(code, tasks, stdin=subprocess.PIPE)
    try:
        assert child.stdout.readline() == "open\n"
        with pytest.raises(LogError, match=f"is being written by process {child.pid} on"):
            TuningLog.open(folder, tasks.HARDWARE, True)
        with TuningLog.open(folder, tasks.HARDWARE, False) as log:
            assert log.has(tasks.matmul())
        child.communicate("\n", timeout=60)
    finally:
        child.kill()
        child.wait()
    TuningLog.open(folder, tasks.HARDWARE, True).close()


def test_second_writer_in_one_process(tasks, tmp_path):
    first = TuningLog.open(tmp_path / "log", tasks.HARDWARE, True)
    with first, pytest.raises(LogError, match=f"process {os.getpid()}"):
        TuningLog.open(tmp_path / "log", tasks.HARDWARE, True)


def test_disk_full_while_committing(tasks, tmp_path):
    """A file-size limit fails the write half-way, as a full disk does."""
    folder = tasks.fill(tmp_path / "log", per_task=1)
    limit = max((folder / name).stat().st_size for name in LINES[:2]) + 300
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    with TuningLog.open(folder, tasks.HARDWARE, True) as log:
        stored = 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
        try:
            with pytest.raises(LogError, match=r"record\.json: File too large; what is already"):
                for _ in range(1000):
                    log.commit(tasks.matmul(), tasks.trace(tasks.matmul(), 2), [1e-3])
                    stored += 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        assert len(log) == stored
        log.commit(tasks.matmul(), tasks.trace(tasks.matmul(), 4), [1e-6])
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        assert log.notes == [] and len(log) == stored + 1


def test_unwritable_folder_can_be_read(tasks, tmp_path, monkeypatch):
    folder = tasks.fill(tmp_path / "log")

    def refuse(path, flags, *args, **kwargs):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *args, **kwargs)

    real = os.open
    monkeypatch.setattr(os, "open", refuse)  # root may write anywhere, so modes prove nothing
    with pytest.raises(LogError, match="Permission denied"):
        TuningLog.open(folder, tasks.HARDWARE, True)
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        assert log.has(tasks.matmul())


def test_folder_that_cannot_be_made(tasks, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match=r"cannot write .*file"):
        TuningLog.open(tmp_path / "file" / "log", tasks.HARDWARE, True)
