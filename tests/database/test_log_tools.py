"""status, clear, merge, distill: plain-line operations that import no TVM."""

import json
import subprocess
import sys

import pytest

from tvmfuse.database import (
    ESTIMATED,
    TaskState,
    TuningLog,
    clear,
    distill,
    merge,
    status,
    task_hash,
)
from tvmfuse.errors import LogError


def _tuned(tasks, folder, n, trials, name="matmul"):
    with TuningLog.open(folder, tasks.HARDWARE, True) as log:
        task = task_hash(tasks.matmul(n))
        log.set_task_state(TaskState(task, name, trials, {"trials": trials}, True, 333.3))
    return task


def test_status(tasks, tmp_path):
    folder = tasks.fill(tmp_path / "x86-test", sizes=(16, 32))
    task = _tuned(tasks, folder, 16, 3)
    with (folder / "database_tuning_record.json").open("ab") as file:
        file.write(b"rubbish\n[0,")
    (tmp_path / "unrelated").mkdir()
    (row,) = status(tmp_path)
    assert row["key"] == "x86-test" and row["tasks"] == 2 and row["records"] == 6
    assert row["broken_lines"] == 2 and row["error"] == ""
    assert row["header"]["kind"] == "measured"
    assert row["size_bytes"] == sum(p.stat().st_size for p in folder.glob("*.json"))
    best = {entry["task"]: entry for entry in row["best"]}
    assert len(best) == 2
    assert best[task]["name"] == "matmul" and best[task]["complete"]
    assert best[task]["best_us"] == pytest.approx(1000 / 3)
    json.dumps(row)


def test_status_of_nothing(tmp_path):
    assert status(tmp_path) == [] == status(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="is not a folder"):
        status(tmp_path / "file")


def test_status_tells_of_a_damaged_header(tasks, tmp_path):
    tasks.fill(tmp_path / "x86-test")
    (tmp_path / "x86-test" / "header.json").write_text("{")
    (row,) = status(tmp_path)
    assert row["header"] is None and "damaged" in row["error"] and row["records"] == 3


def test_tools_import_no_tvm(tasks, tmp_path):
    tasks.fill(tmp_path / "a")
    code = f"""
import sys
from pathlib import Path
from tvmfuse.database import distill, merge, status, clear
a, b = Path({str(tmp_path / "a")!r}), Path({str(tmp_path / "b")!r})
assert merge([a], b) == 3 and distill(b) == (3, 1) and status(a.parent)[1]["records"] == 1
clear(b)
assert not {{"tvm", "tvm_ffi", "torch", "numpy"}} & set(sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_clear(tasks, tmp_path):
    folder = tasks.fill(tmp_path / "logs" / "x86-test")
    (folder / "notes.txt").write_text("mine")
    assert clear(folder) > 1000
    assert sorted(p.name for p in folder.glob("[!.]*")) == ["notes.txt"]
    with pytest.raises(LogError, match="holds no tuning log"):
        clear(folder)
    tasks.fill(folder)
    assert clear(tmp_path / "logs") > 1000
    assert status(tmp_path / "logs") == []


def test_clear_waits_for_no_writer(tasks, tmp_path):
    folder = tasks.fill(tmp_path / "log")
    with TuningLog.open(folder, tasks.HARDWARE, True):
        for change in (clear, distill, lambda f: merge([f], f)):
            with pytest.raises(LogError, match="is being written by process"):
                change(folder)
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        assert len(log) == 3


@pytest.mark.parametrize(("keep", "left"), [(1, 2), (2, 4), (9, 6)])
def test_distill(tasks, tmp_path, keep, left):
    folder = tasks.fill(tmp_path / "log", sizes=(16, 32))
    assert distill(folder, keep) == (6, left)
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        assert len(log) == left and log.notes == []
        for n in (16, 32):
            assert log.best(tasks.matmul(n)).seconds == pytest.approx(1e-3 / 3)


def test_distill_refuses(tasks, tmp_path):
    with pytest.raises(ValueError, match="at least 1"):
        distill(tasks.fill(tmp_path / "log"), 0)
    with pytest.raises(LogError, match="not a tuning log"):
        distill(tmp_path)


def test_merge(tasks, tmp_path):
    a = tasks.fill(tmp_path / "a", sizes=(16, 32))
    b = tasks.fill(tmp_path / "b", sizes=(48, 32))
    few, many = _tuned(tasks, a, 32, 3, "few"), _tuned(tasks, b, 32, 64, "many")
    assert few == many
    dest = tasks.fill(tmp_path / "dest", sizes=(64, 48), per_task=1)
    assert merge([a, b], dest) == 10  # 16, 32, 48: three each (of 48 one was there), 64: one
    assert merge([a, b], dest) == 10
    with TuningLog.open(dest, tasks.HARDWARE, False) as log:
        assert log.notes == [] and len(log) == 10
        for n, count in ((16, 3), (32, 3), (48, 3), (64, 1)):
            found = log.records(tasks.matmul(n), 9)
            assert len(found) == count
            found[0].schedule(tasks.matmul(n))
        assert log.task_state(many).name == "many"


def test_merge_into_a_new_folder_is_a_small_copy(tasks, tmp_path):
    folder = tasks.fill(tmp_path / "log", sizes=(16, 32))
    path = folder / "database_tuning_record.json"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[3:]))
    assert merge([folder], tmp_path / "new") == 3
    (row,) = (r for r in status(tmp_path) if r["folder"].endswith("new"))
    assert row["tasks"] == 1
    assert len((tmp_path / "new" / "database_workload.json").read_bytes().splitlines()) == 1


def test_merge_refuses_other_targets_kinds_and_versions(tasks, tmp_path):
    a = tasks.fill(tmp_path / "a")
    other = tasks.fill(tmp_path / "arm", hardware=tasks.other_hardware())
    estimated = tasks.fill(tmp_path / "estimated", kind=ESTIMATED)
    with pytest.raises(LogError, match=r"target arm-test\) with .*target x86-test"):
        merge([a, other], tmp_path / "new")
    with pytest.raises(LogError, match=r"kind measured\) with .*kind estimated"):
        merge([a], estimated)
    with pytest.raises(LogError, match="not a tuning log"):
        merge([a, tmp_path / "nothing"], tmp_path / "new")
    with pytest.raises(LogError, match="no source"):
        merge([], tmp_path / "new")
    assert not (tmp_path / "new").exists()
