"""One system of scripts/bench.py in its process: quiet when idle, and every way to fail."""

import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.extend([str(SCRIPTS), str(Path(__file__).parent)])

from bench_peers import ADAPTERS, PEERS, Task  # noqa: E402
from bench_process import SystemProcess, child_environment  # noqa: E402
from processes import ends, state  # noqa: E402

FAKE_ORT = """
import os, signal, time
import numpy as np
class GraphOptimizationLevel:
    ORT_ENABLE_ALL = 99
class SessionOptions:
    pass
class Input:
    name = "x"
class InferenceSession:
    def __init__(self, path, options, providers):
        self.threads = options.intra_op_num_threads
        {on_load}
    def get_inputs(self):
        return [Input()]
    def run(self, outputs, feed):
        {on_run}
        return [feed["x"] * self.threads]
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Start a process whose onnxruntime is a fake, and load it."""
    started = []

    def start(on_load="pass", on_run="pass", source=FAKE_ORT, timeout_s=60.0):
        package = tmp_path / "packages" / "onnxruntime"
        package.mkdir(parents=True)
        text = source.replace("{on_load}", on_load).replace("{on_run}", on_run)
        (package / "__init__.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(package.parent))
        np.savez(tmp_path / "inputs.npz", np.arange(3, dtype="float32"))
        task = Task("m", None, None, None, seed=0, threads=2, folder=str(tmp_path))
        system = SystemProcess("onnxruntime", 2, tmp_path)
        started.append(system)
        return system, system.ask(timeout_s, do="load", task=asdict(task), system="onnxruntime")

    yield start
    for system in started:
        system.close()


def test_a_system_loads_runs_and_tells_its_memory(load, tmp_path):
    system, loaded = load()
    assert set(loaded["stages_s"]) == {"import", "load", "first_call"}
    assert loaded["imports"] == ["onnxruntime"]  # no torch: its memory is not charged to ORT
    with np.load(tmp_path / "onnxruntime.npz") as stored:
        np.testing.assert_array_equal(stored["arr_0"], [0.0, 2.0, 4.0])
    assert len(system.ask(60, do="run", calls=3, warmup=1)["samples_ms"]) == 3
    memory = system.ask(60, do="memory")
    assert memory["peak_memory_bytes"] > memory["bare_memory_bytes"] > 0


def test_peak_memory_sees_what_a_run_allocates(load):
    system, _ = load(on_run="np.ones(64 << 20, 'uint8')")
    system.ask(60, do="run", calls=1, warmup=0)
    assert system.ask(60, do="memory")["peak_memory_increase_bytes"] > 60 << 20


def test_it_is_stopped_while_it_is_not_its_turn(load):
    system, _ = load()
    os.waitid(os.P_PID, system._process.pid, os.WSTOPPED | os.WNOWAIT)
    assert state(system._process.pid) == "T"
    assert system.ask(60, do="run", calls=1, warmup=0)["samples_ms"]


@pytest.mark.parametrize(
    ("broken", "kind", "says"),
    [
        ({"source": "raise ModuleNotFoundError('No module named onnx')"}, "missing", "pip install"),
        ({"source": "raise ImportError('libgomp.so.1')"}, "failed", "libgomp.so.1"),
        ({"on_load": "raise ValueError('opset 99')"}, "failed", "ValueError: opset 99"),
        ({"on_run": "os.kill(os.getpid(), signal.SIGSEGV)"}, "failed", "SIGSEGV"),
        ({"on_run": "os._exit(3)"}, "failed", "exit code 3"),
        ({"on_run": "time.sleep(3600)", "timeout_s": 2.0}, "failed", "no answer"),
    ],
)
def test_what_goes_wrong_is_said_and_stays_said(load, broken, kind, says):
    system, answer = load(**broken)
    assert says in answer[kind]
    assert system.ask(60, do="run", calls=1, warmup=0) == answer
    assert system._process.poll() is not None  # nothing is left running


def test_a_stopped_system_dies_with_its_parent(tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "import os, pathlib\n"
        "from bench_process import SystemProcess\n"
        f"system = SystemProcess('eager', 1, pathlib.Path({str(tmp_path)!r}))\n"
        "system.ask(60, do='memory')\n"
        "print(system._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    pid = int(parent.stdout)
    if not ends(pid):
        os.kill(pid, signal.SIGKILL)
        pytest.fail("the child outlived its parent")


def test_tvmfuse_is_loaded_by_its_runtime_alone(tmp_path, monkeypatch):
    package = tmp_path / "packages" / "tvmfuse"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "def load(folder, threads):\n"
        "    assert folder == 'the artifact', folder\n"
        "    return lambda x: {'y': (x + threads,)}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    np.savez(tmp_path / "inputs.npz", np.zeros(3, "float32"))
    task = Task("m", None, None, None, 0, 2, str(tmp_path), artifact="the artifact")
    system = SystemProcess("tvmfuse", 2, tmp_path)
    try:
        loaded = system.ask(60, do="load", task=asdict(task), system="tvmfuse")
    finally:
        system.close()
    assert loaded["imports"] == ["tvmfuse"]  # neither torch nor the compiler
    with np.load(tmp_path / "tvmfuse.npz") as stored:
        np.testing.assert_array_equal(stored["arr_0"], [2.0, 2.0, 2.0])


def test_what_a_framework_prints_does_not_disturb_the_answers(load):
    _, answer = load(on_load="print('hello'); os.write(1, b'from C')")
    assert "stages_s" in answer


def test_every_system_gets_the_same_threads_and_a_cache_of_its_own(tmp_path):
    one, other = (child_environment(name, 3, tmp_path) for name in ("inductor", "eager"))
    assert {one[n] for n in ("OMP_NUM_THREADS", "TVM_NUM_THREADS")} == {"3"}
    different = {key for key in one if one[key] != other[key]}
    assert different == {"TORCHINDUCTOR_CACHE_DIR"}


def test_everything_but_tvmfuse_is_a_peer():
    assert set(PEERS) == set(ADAPTERS) - {"tvmfuse"}
