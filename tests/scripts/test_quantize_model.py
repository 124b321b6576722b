"""A model quantised to a file, which compiles like any other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tvmfuse.frontend.models import load_model
from tvmfuse.frontend.qdq import quantises

SCRIPT = Path(__file__).parents[2] / "scripts" / "quantize_model.py"


def _run(*arguments):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


def test_a_file_is_written(tmp_path):
    pytest.importorskip("torchao")
    source, output = tmp_path / "small.pt2", tmp_path / "small-int8.pt2"
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    torch.export.save(torch.export.export(module, (torch.randn(1, 3, 8, 8),)), source)
    code, out, err = _run("--model", source, "--calibrate", "random", "--output", output)
    assert code == 0, err
    account = json.loads(out)
    assert account["layers"] == 1 and account["calibration"] == "random numbers"
    assert quantises(load_model(str(output)).program)


def test_another_kind_of_file_is_refused(tmp_path):
    code, _, err = _run("--model", "m", "--calibrate", "random", "--output", tmp_path / "m.onnx")
    assert code == 1 and "must end in .pt2" in err
