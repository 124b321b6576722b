"""Traces of PyTorch's profiler: outermost operators by kind."""

import gzip
import json

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tvmfuse.errors import OptionError
from tvmfuse.explain.profile import measured_ms


def event(name, ts, dur, tid=1):
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid}


EVENTS = [
    event("aten::conv2d", 0, 100),
    event("aten::convolution", 5, 90),
    event("aten::relu_", 100, 20),
    event("aten::strange", 130, 10),
    event("aten::relu", 10, 30, tid=2),
    {"ph": "M", "name": "process_name"},
]


def test_what_an_operator_calls_is_in_its_time(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": EVENTS}))
    assert measured_ms(path) == {"nn.conv2d": 0.1, "nn.relu": 0.05, "aten::strange": 0.01}


def test_a_trace_that_pytorch_wrote(tmp_path):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    with profile(activities=[ProfilerActivity.CPU]) as profiler, torch.no_grad():
        module(torch.randn(1, 3, 8, 8))
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    found = measured_ms(path)
    assert found["nn.conv2d"] > 0 and found["nn.relu"] > 0
    assert measured_ms(packed) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "not a trace"),
        ("{}", "not a trace"),
        ("[]", "not a trace"),
        ('{"traceEvents": []}', "no operators"),
    ],
)
def test_other_files_are_refused(tmp_path, text, says):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=says):
        measured_ms(path)
    with pytest.raises(OptionError, match="no such file"):
        measured_ms(tmp_path / "missing.json")
