"""Verdicts in the log: kept, found again, replaced by later ones, and tidied with the rest."""

import dataclasses
import json

import pytest

from tvmfuse.database import FusionVerdict, TuningLog, clear, merge, status
from tvmfuse.database.files import VERDICTS
from tvmfuse.database.verdicts import parse_verdict

LOST = FusionVerdict(
    group="0123456789abcdef", rule="relu(dense(x))", parts=2, fused=False, fused_us=20.0,
    parts_us=10.0, asked="why", intermediate_bytes=4096, spills=17, parts_spills=1,
)  # fmt: skip


def stored(folder, tasks, *verdicts):
    with TuningLog.open(folder, tasks.HARDWARE, True) as log:
        for verdict in verdicts:
            log.set_verdict(verdict)
    return folder


def test_a_verdict_is_found_again_and_a_later_one_wins(tasks, tmp_path):
    folder = stored(tmp_path / "x86-test", tasks, LOST)
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        assert log.verdict(LOST.group) == LOST
        assert log.verdict("fedcba9876543210") is None
    won = dataclasses.replace(LOST, fused=True, fused_us=5.0)
    stored(folder, tasks, won)
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        assert log.verdict(LOST.group) == won
    assert len((folder / VERDICTS).read_text().splitlines()) == 2


def test_an_own_verdict_stands_before_a_shipped_one(tasks, tmp_path):
    own = stored(tmp_path / "own", tasks, LOST)
    other = dataclasses.replace(LOST, group="00000000000000aa")
    shipped = stored(
        tmp_path / "shipped", tasks, dataclasses.replace(LOST, fused=True, fused_us=1.0), other
    )
    with TuningLog.open(own, tasks.HARDWARE, False, shipped=shipped) as log:
        assert log.verdict(LOST.group) == LOST
        assert log.verdict(other.group) == other


@pytest.mark.parametrize(
    "change",
    [{"parts_us": -1.0}, {"parts_us": "10"}, {"fused": 1}, {"group": 5}, {"surplus": 1}],
)
def test_damaged_lines_are_skipped_and_told(tasks, tmp_path, change):
    line = json.dumps({**LOST.to_json(), **change})
    with pytest.raises(ValueError):
        parse_verdict(line.encode())
    folder = stored(tmp_path / "x86-test", tasks, LOST)
    with (folder / VERDICTS).open("a") as file:
        file.write(line + "\n")
    with TuningLog.open(folder, tasks.HARDWARE, False) as log:
        assert log.verdict(LOST.group) == LOST
        assert any("skipped 1 damaged lines: 2" in note for note in log.notes)


def test_status_merge_and_clear_know_verdicts(tasks, tmp_path):
    one = stored(tmp_path / "logs" / "x86-test", tasks, LOST)
    (row,) = status(tmp_path / "logs")
    assert row["verdicts"] == 1 and row["broken_lines"] == 0
    mine = dataclasses.replace(LOST, fused=True, fused_us=9.0)
    dest = stored(tmp_path / "dest", tasks, mine)
    merge([one], dest)
    with TuningLog.open(dest, tasks.HARDWARE, False) as log:
        assert log.verdict(LOST.group) == mine
    merge([one], tmp_path / "copy")
    with TuningLog.open(tmp_path / "copy", tasks.HARDWARE, False) as log:
        assert log.verdict(LOST.group) == LOST
    clear(one)
    assert not (one / VERDICTS).exists()


def test_the_evidence_is_said():
    assert "20.0 us in one kernel, 10.0 us in its 2 parts" in LOST.said
    assert "spills 17 vector registers to the stack (its parts: 1)" in LOST.said
    assert "4096 bytes of intermediates" in LOST.said
    failed = dataclasses.replace(LOST, fused_us=None, spills=None, failure="timeout: too long")
    assert failed.said == "measured: timeout: too long in one kernel, 10.0 us in its 2 parts"
