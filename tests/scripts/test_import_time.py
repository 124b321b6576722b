"""Import time against export alone: both are timed, and the exit code tells too long a time."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

import import_time

from tvmfuse.frontend.loaded import LoadedReference


def tiny(name, weights):
    assert weights == "random"
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    return LoadedReference(net, (torch.randn(1, 3, 8, 8),), name, {})


def test_both_are_timed(monkeypatch):
    monkeypatch.setattr(import_time, "load_model", tiny)
    row = import_time.import_s("tiny", 2)
    assert row["model"] == "tiny" and row["rounds"] == 2
    assert row["export_s"] > 0 and row["import_s"] > 0
    assert row["ratio"] == pytest.approx(row["import_s"] / row["export_s"])


@pytest.mark.parametrize(("ratio", "code"), [(1.4, 0), (1.6, 1)])
def test_exit_code_says_whether_it_takes_too_long(monkeypatch, capsys, ratio, code):
    row = {"model": "m", "rounds": 1, "export_s": 1.0, "import_s": ratio, "ratio": ratio}
    monkeypatch.setattr(import_time, "import_s", lambda name, rounds: row)
    monkeypatch.setattr(sys, "argv", ["import_time.py", "--models", "m", "--json"])
    assert import_time.main() == code
    assert json.loads(capsys.readouterr().out)["rows"] == [row]
