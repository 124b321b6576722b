"""TuningLog: committing, looking up, and refusing what is not its own."""

import json
import os

import pytest

from tvmfuse.database import ESTIMATED, TaskState, TuningLog, task_hash
from tvmfuse.errors import LogError


def test_commit_and_look_up(tasks, tmp_path):
    folder = tasks.fill(tmp_path / "log", sizes=(16, 32))
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        assert log.notes == [] and len(log) == 6
        best = log.best(tasks.matmul(32))
        assert best.seconds == pytest.approx(1e-3 / 3)
        assert [r.seconds for r in log.records(tasks.matmul(16), 2)] == pytest.approx(
            [1e-3 / 3, 1e-3 / 2]
        )
        assert log.has(tasks.matmul(16)) and not log.has(tasks.matmul(8))
        assert log.best(tasks.matmul(8)) is None


def test_schedule_is_replayed(tasks, tmp_path):
    from tvm.s_tir import Schedule
    from tvm_ffi import structural_equal

    folder = tasks.fill(tmp_path / "log")
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        replayed = log.best(tasks.matmul()).schedule(tasks.matmul())
    fresh = Schedule(tasks.matmul())
    tasks.trace(tasks.matmul(), 4).apply_to_schedule(fresh, remove_postproc=False)
    assert structural_equal(replayed.mod, fresh.mod)


def test_record_that_does_not_apply(tasks, tmp_path):
    folder = tasks.fill(tmp_path / "log")
    path = folder / "database_tuning_record.json"
    path.write_bytes(path.read_bytes().replace(b'["C",', b'["D",'))
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        best = log.best(tasks.matmul())
    with pytest.raises(LogError, match=r"333\.3 us in .*does not apply"):
        best.schedule(tasks.matmul())


def test_metaschedule_reads_the_same_files(tasks, tmp_path):
    from tvm.s_tir.meta_schedule.database import JSONDatabase
    from tvm.target import Target
    from tvm_ffi import structural_equal

    folder = tasks.fill(tmp_path / "log", sizes=(16, 32))
    database = JSONDatabase(work_dir=str(folder))
    assert len(database) == 6
    target = Target({"kind": "llvm"})
    theirs = database.query_schedule(tasks.matmul(), target, "main")
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        ours = log.best(tasks.matmul()).schedule(tasks.matmul())
    assert structural_equal(theirs.mod, ours.mod)


def test_reads_what_metaschedule_wrote(tasks, tmp_path):
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo
    from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord
    from tvm.target import Target

    folder = tasks.fill(tmp_path / "log")
    database = JSONDatabase(work_dir=str(folder))
    mod = tasks.matmul(24)
    workload = database.commit_workload(mod)
    arguments = ArgInfo.from_entry_func(mod, True)
    record = TuningRecord(
        tasks.trace(mod, 3), workload, [2e-6], Target({"kind": "llvm"}), arguments
    )
    database.commit_tuning_record(record)
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        assert log.best(mod).seconds == pytest.approx(2e-6)
        log.best(mod).schedule(mod)


@pytest.mark.parametrize("seconds", [[], [0.0], [-1.0], [float("nan")], [1e-3, float("inf")]])
def test_impossible_seconds(tasks, tmp_path, seconds):
    log = TuningLog.open(tmp_path / "log", tasks.HARDWARE, True)
    with log, pytest.raises(ValueError, match="positive and finite"):
        log.commit(tasks.matmul(), tasks.trace(tasks.matmul(), 2), seconds)
    assert not (tmp_path / "log" / "header.json").exists()


def test_header_says_what_the_log_is(tasks, tmp_path):
    header = json.loads((tasks.fill(tmp_path / "log") / "header.json").read_text())
    assert header["kind"] == "measured" and header["key"] == "x86-test"
    assert header["target"] == {"kind": "llvm", "num-cores": 2}
    assert header["hardware"]["cores"] == 2
    assert header["versions"]["tvm"].startswith("0.")


@pytest.mark.parametrize("write", [False, True])
def test_log_of_another_target(tasks, tmp_path, write):
    folder = tasks.fill(tmp_path / "log")
    with pytest.raises(LogError, match=r"measured records for target x86-test; .*arm-test"):
        TuningLog.open(folder, tasks.other_hardware(), write)
    TuningLog.open(folder, tasks.HARDWARE, True).close()  # the refused one holds no lock


def test_log_of_another_kind(tasks, tmp_path):
    folder = tasks.fill(tmp_path / "log", kind=ESTIMATED)
    with pytest.raises(LogError, match=r"holds estimated records .* asked for measured records"):
        TuningLog.open(folder, tasks.HARDWARE, False)
    with TuningLog.open(folder, tasks.HARDWARE, False, kind=ESTIMATED) as log:
        assert log.has(tasks.matmul())


def _age(folder):
    path = folder / "header.json"
    header = json.loads(path.read_text())
    header["versions"]["tvm"] = "0.20.0"
    path.write_text(json.dumps(header))


def test_log_of_another_tvm_is_a_miss_said_aloud(tasks, tmp_path):
    folder = tasks.fill(tmp_path / "log")
    _age(folder)
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        assert not log.has(tasks.matmul())
        assert len(log.notes) == 1 and "written with TVM 0.20.0" in log.notes[0]
    assert (folder / "database_tuning_record.json").exists()


def test_writing_moves_a_log_of_another_tvm_aside(tasks, tmp_path):
    folder = tasks.fill(tmp_path / "log")
    _age(folder)
    old = (folder / "database_tuning_record.json").read_bytes()
    tasks.fill(folder, per_task=1)
    assert (folder / "tvm-0.20.0" / "database_tuning_record.json").read_bytes() == old
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        assert log.notes == [] and len(log) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "header.json is damaged"), ('{"schema": 9}', "schema 9"), ('{"schema": 1}', "lacks")],
)
def test_damaged_header(tasks, tmp_path, text, said):
    folder = tasks.fill(tmp_path / "log")
    (folder / "header.json").write_text(text)
    with pytest.raises(LogError, match=said):
        TuningLog.open(folder, tasks.HARDWARE, False)


def test_missing_header(tasks, tmp_path):
    folder = tasks.fill(tmp_path / "log")
    (folder / "header.json").unlink()
    with pytest.raises(LogError, match="records but no header"):
        TuningLog.open(folder, tasks.HARDWARE, False)


def test_absent_log_is_empty(tasks, tmp_path):
    with TuningLog.open(tmp_path / "none", tasks.HARDWARE, False) as log:
        assert len(log) == 0 and log.best(tasks.matmul()) is None
        with pytest.raises(LogError, match="not open for writing"):
            log.commit(tasks.matmul(), tasks.trace(tasks.matmul(), 2), [1.0])
    assert os.listdir(tmp_path) == []


def test_shipped_records_compete(tasks, tmp_path):
    shipped = tasks.fill(tmp_path / "shipped", sizes=(16, 32), per_task=2)
    own = tmp_path / "own"
    before = sorted((p.name, p.read_bytes()) for p in shipped.iterdir())
    with TuningLog.open(own, tasks.HARDWARE, True, shipped=shipped) as log:
        assert log.best(tasks.matmul(16)).source == shipped
        log.commit(tasks.matmul(16), tasks.trace(tasks.matmul(16), 8), [1e-6])
        log.commit(tasks.matmul(32), tasks.trace(tasks.matmul(32), 8), [1.0])
        assert log.best(tasks.matmul(16)).source == own
        assert log.best(tasks.matmul(32)).source == shipped
        assert [r.source for r in log.records(tasks.matmul(16), 9)] == [own, shipped, shipped]
    assert sorted((p.name, p.read_bytes()) for p in shipped.iterdir()) == before


def test_shipped_log_that_is_not_there(tasks, tmp_path):
    with TuningLog.open(tmp_path, tasks.HARDWARE, False, shipped=tmp_path / "no") as log:
        assert log.notes == [] and len(log) == 0


def _state(task, trials, complete=False, best_us=3.5):
    return TaskState(task, "matmul", trials, {"trials": 64}, complete, best_us)


def test_task_states(tasks, tmp_path):
    task = task_hash(tasks.matmul())
    assert len(task) == 16 and task == task_hash(tasks.matmul()) != task_hash(tasks.matmul(8))
    shipped, own = tmp_path / "shipped", tmp_path / "own"
    with TuningLog.open(shipped, tasks.HARDWARE, True) as log:
        log.set_task_state(_state(task, 64, True))
        log.set_task_state(_state("other", 2, best_us=None))
    with TuningLog.open(own, tasks.HARDWARE, True, shipped=shipped) as log:
        assert log.task_state(task) == _state(task, 64, True)
        log.set_task_state(_state(task, 16))
        log.set_task_state(_state(task, 32))
        assert log.task_state(task) == _state(task, 32)
    with TuningLog.open(own, tasks.HARDWARE, False, shipped=shipped) as log:
        assert log.task_state(task) == _state(task, 32)
        assert log.task_state("other").best_us is None
        assert log.task_state("unknown") is None
