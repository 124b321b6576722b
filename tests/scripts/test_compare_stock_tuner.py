"""The comparison's table and options; the comparison itself takes minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_stock_tuner.py"


def _side(rate):
    return {
        "trials": 128,
        "failed": 2,
        "seconds": 128 / rate,
        "trials_per_s": rate,
        "import_s": 3.5,
        "best_ms": [1.25, None],
    }


def test_table_shows_both_sides_and_the_ratio():
    names: dict = {"__name__": "compare"}
    exec(compile(SCRIPT.read_text(encoding="utf-8"), str(SCRIPT), "exec"), names)
    text = names["table"]({"stock": _side(0.5), "ours": _side(6.0), "ratio": 12.0})
    lines = text.splitlines()
    assert lines[1].split() == ["stock", "128", "2", "256.0", "0.50", "3.5", "1.250", "-"]
    assert lines[2].split()[:2] == ["ours", "128"] and lines[-1] == "ours / stock: 12.0"


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--tasks", "0"], "--tasks must be 1"), (["--trials", "3"], "at least 2 a task")],
)
def test_impossible_options_are_refused(options, says):
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True)
    assert done.returncode == 2 and says in done.stderr
