"""Timing an artifact in a process of its own."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tvmfuse.errors import ArtifactError
from tvmfuse.runtime import load
from tvmfuse.runtime.timing import measure, random_input, time_artifact
from tvmfuse.signature import TensorSpec

KEYS = {"median", "p10", "p90", "calls", "peak_memory_bytes"}


def test_command_prints_one_line_of_json(artifact):
    command = [sys.executable, "-m", "tvmfuse.runtime.timing", str(artifact)]
    command += ["--seconds", "0.01", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (line,) = done.stdout.strip().splitlines()
    found = json.loads(line)
    assert set(found) == KEYS
    assert 0 < found["p10"] <= found["median"] <= found["p90"]
    assert found["calls"] >= 5 and found["peak_memory_bytes"] > 1 << 20


def test_child_needs_neither_torch_nor_the_compiler(artifact):
    code = f"""
import sys
sys.modules["torch"] = sys.modules["tvm"] = None
sys.argv = ["timing", {str(artifact)!r}, "--seconds", "0.01"]
from tvmfuse.runtime.timing import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) == KEYS


def test_at_least_five_calls(artifact):
    assert measure(load(artifact, threads=1), 0.0)["calls"] == 5


def test_time_artifact(artifact):
    assert set(time_artifact(artifact, threads=1, seconds=0.01)) == KEYS


def test_artifact_that_does_not_run_is_told(artifact):
    (artifact / "manifest.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"was written but does not run: .*manifest"):
        time_artifact(artifact, seconds=0.01)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_random_floats(dtype):
    x = random_input(TensorSpec("x", (64, 3), dtype), np.random.default_rng(0))
    assert x.shape == (64, 3) and x.dtype == dtype
    assert 0.5 < x.std() < 2


@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8"])
def test_integers_are_zero(dtype):
    """Any other value might be no valid index."""
    x = random_input(TensorSpec("x", (4,), dtype), np.random.default_rng(0))
    assert x.dtype == dtype and not x.any()


def test_bfloat16_input_in_a_fresh_process():
    """Where nothing has taught NumPy the type yet, as in the child."""
    code = """
import numpy as np
from tvmfuse.runtime.timing import random_input
from tvmfuse.signature import TensorSpec
x = random_input(TensorSpec("x", (4, 2), "bfloat16"), np.random.default_rng(0))
assert x.shape == (4, 2) and x.dtype.itemsize == 2
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr.splitlines()[-1]
