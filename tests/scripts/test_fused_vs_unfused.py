"""Fused against unfused: the page from given figures, and a tiny model for real."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import fused_vs_unfused
from fused_vs_unfused import group_table, line

GROUPS = [
    {"rule": "relu(dense(x))", "parts": 2, "fused": True, "fused_us": 5.0, "parts_us": 10.0,
     "spills": None},
    {"rule": "dense(dense(x))", "parts": 2, "fused": False, "fused_us": 30.0, "parts_us": 10.0,
     "spills": 99},
    {"rule": "tanh(dense(x))", "parts": 2, "fused": False, "fused_us": None, "parts_us": 10.0,
     "spills": None},
]  # fmt: skip


def test_groups_that_gain_least_come_first():
    rows = group_table(GROUPS)[2:]
    assert rows == [
        "| `dense(dense(x))` | 2 | 30.0 | 10.0 | 3.00 | split | 99 |",
        "| `relu(dense(x))` | 2 | 5.0 | 10.0 | 0.50 | fused |  |",
    ]


def test_a_line_says_how_many_lose():
    found = {"model": "m", "unfused_ms": 2.0, "fused_ms": 1.0, "ratio": 0.5, "groups": GROUPS}
    assert line(found).endswith("ratio 0.500; 3 groups measured, 2 lose")


def test_a_budget_is_needed(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["fused_vs_unfused.py", "--log-dir", str(tmp_path)])
    with pytest.raises(SystemExit, match="--trials N or --time-budget"):
        fused_vs_unfused.main()


@pytest.mark.slow
def test_a_tiny_model(monkeypatch, tmp_path):
    out, page = tmp_path / "out.json", tmp_path / "page.md"
    given = ["--models", "bench_tiny:make", "--trials", "2", "--threads", "1", "--rounds", "2"]
    given += ["--seconds", "0.02", "--log-dir", str(tmp_path / "logs")]
    given += ["--json", str(out), "--markdown", str(page)]
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(sys, "argv", ["fused_vs_unfused.py", *given])
    fused_vs_unfused.main()
    (found,) = json.loads(out.read_text())
    assert found["builds"]["fused"]["kernels"] < found["builds"]["unfused"]["kernels"]
    assert found["fused_ms"] > 0 and len(found["ratios"]) == 2
    assert found["groups"] and all(g["parts"] > 1 for g in found["groups"])
    assert "## bench_tiny:make" in page.read_text()
