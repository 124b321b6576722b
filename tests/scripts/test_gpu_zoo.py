"""The zoo for GPUs: its page from given figures, and one small model for real."""

import dataclasses
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from gpu_child import figures
from gpu_zoo import page, rows

from tvmfuse.codegen.toolkits import find_toolkit
from tvmfuse.errors import BuildError
from tvmfuse.frontend.import_model import import_module

BUILT = {
    "arch": "sm_75", "seconds": 7.5, "calls": 10, "device_kernels": 6, "registers": 64,
    "shared_bytes": 4096, "spilling": 1,
}  # fmt: skip
ONE = {"model": "one", "outcome": "tried", "targets": {"t4": BUILT, "a100": {"failed": "no | way"}}}
DEAD = {"model": "dead", "outcome": "crashed", "message": "a\nb"}


def test_rows():
    assert rows(ONE) == [
        "| one | t4 | 8 | 10 | 6 | 64 | 4096 | 1 |",
        r"| one | a100 | no \| way | | | | | |",
    ]
    assert rows(DEAD) == ["| dead | crashed: a b | | | | | | |"]


def test_share_of_tensor_cores():
    half = {**ONE, "targets": {"t4": {**BUILT, "tensor_share": 0.925}}}
    assert rows(half, tensor=True) == ["| one | t4 | 8 | 10 | 6 | 64 | 4096 | 1 | 92.5% |"]
    text = page([half], "float16")
    assert "| tensor cores |" in text and "--dtype float16" in text


def test_page_counts_builds_and_spills():
    text = page([ONE, DEAD])
    assert "2 models, 2 builds: 1 compile, 1 do not; 1 of 6 device kernels spill" in text
    assert "nothing was run on a device" in text


def test_a_small_model_is_built():
    torch = pytest.importorskip("torch")
    try:
        find_toolkit(75)
    except BuildError as error:
        pytest.skip(str(error))
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    workload = import_module(net, (torch.randn(1, 3, 9, 9),), "net")
    found = figures(workload, "t4")
    assert found["arch"] == "sm_75" and found["registers"] > 0 and found["spilling"] == 0
    assert found["calls"] >= 1 and found["device_kernels"] >= 1 and found["tensor_share"] == 0
    signature = dataclasses.replace(workload.signature, computes="float16")
    found = figures(dataclasses.replace(workload, signature=signature), "t4")
    assert found["tensor_share"] == 1 and found["spilling"] == 0
