"""The block's script: ratios from given times, and a small block for real."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import mission_block
from mission_block import check, limit, summary, table

TIMES = {
    "eager": [10.0, 11.0, 9.0], "torch.compile (freezing)": [6.0], "tvmfuse, unfused": [8.0],
    "tvmfuse": [6.0, 5.0, 7.0],
}  # fmt: skip


def test_ratios_of_medians():
    found = summary(TIMES, dict.fromkeys(TIMES, 0.0))
    ratios = found["ratios"]
    assert ratios["under eager"]["is"] == pytest.approx(0.4) and ratios["under eager"]["reached"]
    assert ratios["under unfused"]["is"] == pytest.approx(0.25)
    assert not ratios["under unfused"]["reached"]
    assert ratios["of torch.compile"]["is"] == pytest.approx(1.0)
    text = table(found)
    assert "at least 39.8%: reached" in text and "at least 39.8%: NOT reached" in text
    assert "at most 95.0%: NOT reached" in text


def test_a_wrong_answer_is_not_timed():
    right, wrong = np.ones(4, "float32"), np.array([1, 1, 1, 1.01], "float32")
    assert check({"eager": lambda: right, "same": lambda: right.copy()})["same"] == 0.0
    with pytest.raises(SystemExit, match=r"other is wrong: relative error 0\.01"):
        check({"eager": lambda: right, "other": lambda: wrong})


def test_the_limit_is_what_the_convolution_leaves():
    rows = [{"ops": ["conv2d"], "us": 75.0}, {"ops": ["relu"], "us": 25.0}]
    said = limit({"unfused": {"kernels": rows}})
    assert "takes 75% of" in said and "would be 25.0% under" in said


@pytest.mark.slow
def test_a_small_block(tmp_path, monkeypatch):
    out = tmp_path / "block.json"
    given = ["--trials", "0", "--rounds", "1", "--seconds", "0.05", "--threads", "1"]
    given += ["--shape", "1,64,8,8", "--log-dir", str(tmp_path), "--json", str(out)]
    given += ["--markdown", str(tmp_path / "block.md")]
    monkeypatch.setattr(sys, "argv", ["mission_block.py", *given])
    mission_block.main()
    found = json.loads(out.read_text())
    assert list(found["ms"]) == list(TIMES) and all(ms > 0 for ms in found["ms"].values())
    assert all(error <= mission_block.TOLERANCE for error in found["errors"].values())
    assert [row["ops"] for row in found["kernels"]["fused"]["kernels"]]
    assert "takes" in (tmp_path / "block.md").read_text()
