"""The runner of small models kept as files."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

import case_coverage


def run(monkeypatch, capsys, folder, outcomes):
    monkeypatch.setattr(
        case_coverage, "attempt", lambda name, *_: {"outcome": outcomes[name.partition(":")[0]]}
    )
    monkeypatch.setattr(sys, "argv", ["case_coverage.py", str(folder)])
    with pytest.raises(SystemExit) as end:
        case_coverage.main()
    return end.value.code, capsys.readouterr().out


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "01_sum.py").write_text('EXPECT = "run"\n')
    (tmp_path / "02_mask.py").write_text('EXPECT = "clear-error-or-run"  # either\n')
    return tmp_path


def test_a_refusal_will_do_where_the_case_says_so(monkeypatch, capsys, folder):
    code, said = run(monkeypatch, capsys, folder, {"01_sum": "right", "02_mask": "refused"})
    assert code == 0
    assert "2 of 2 cases as they expect" in said


@pytest.mark.parametrize("mask", ["wrong", "crashed"])
def test_any_other_outcome_fails(monkeypatch, capsys, folder, mask):
    code, said = run(monkeypatch, capsys, folder, {"01_sum": "refused", "02_mask": mask})
    assert code == 1
    assert "BAD refused  01_sum" in said and f"BAD {mask}" in said


def test_a_case_must_say_what_it_expects(monkeypatch, capsys, folder):
    (folder / "03_none.py").write_text("x = 1\n")
    with pytest.raises(SystemExit, match="does not say EXPECT"):
        case_coverage.expectation(folder / "03_none.py")
