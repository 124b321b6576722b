"""scripts/bench.py from its command line: a tiny model, real and broken peers."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import bench
from bench_model import plan_turn, relative_error, round_order

HERE = Path(__file__).parent
TINY = "bench_tiny:make"
NO_OPENVINO = "raise ModuleNotFoundError(\"No module named 'openvino'\", name='openvino')"
ZEROS_OPENVINO = """
import numpy as np
class Core:
    def compile_model(self, *args): return self
    def create_infer_request(self): return self
    outputs = (0,)
    def infer(self, inputs, **options): return {0: np.zeros((1, 5), "float32")}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the bench on the tiny model with a fake openvino; returns exit code and JSON."""

    def start(openvino, *arguments):
        (tmp_path / "fake" / "openvino").mkdir(parents=True)
        (tmp_path / "fake" / "openvino" / "__init__.py").write_text(openvino)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'fake'}:{HERE}")
        out = tmp_path / "out" / "bench.json"
        common = ["--models", TINY, "--rounds", "3", "--threads", "1", "--json", str(out)]
        return bench.main([*common, *arguments]), json.loads(out.read_text())

    return start


@pytest.mark.slow
def test_a_missing_peer_is_named_and_the_others_are_measured(run, tmp_path, capsys):
    markdown = tmp_path / "bench.md"
    code, result = run(
        NO_OPENVINO,
        *("--peers", "eager,openvino", "--artifacts", str(tmp_path)),
        *("--output-markdown", str(markdown), "--calls", "2"),
    )
    assert code == 0
    assert {"cpu", "threads", "versions", "date", "command"} <= set(result["machine"])
    entry = result["models"]["make"]
    eager = entry["peers"]["eager"]
    assert {
        *("median_ms", "p10_ms", "p90_ms", "rounds", "calls", "peak_memory_bytes"),
        *("peak_memory_increase_bytes", "compile_s", "max_rel_err", "imports"),
    } <= set(eager)
    assert (eager["rounds"], eager["calls"]) == (3, 6)
    assert eager["max_rel_err"] < 1e-6 and not eager["wrong"]
    assert "tvm" not in eager["imports"]
    missing = entry["peers"]["openvino"]["missing"]
    assert "pip install" in missing and "openvino" in missing.partition("pip install")[2]
    assert "no artifact bench_tiny-make-llvm" in entry["tvmfuse"]["missing"]
    assert entry["best_peer"] == "eager" and entry["ratio_to_best_peer"] is None
    assert missing in capsys.readouterr().out
    assert missing in markdown.read_text()


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("onnxscript"), reason="onnxscript not installed")
@pytest.mark.skipif(not importlib.util.find_spec("onnxruntime"), reason="onnxruntime not installed")
def test_onnxruntime_agrees_and_a_wrong_peer_never_wins(run):
    code, result = run(ZEROS_OPENVINO, "--no-tvmfuse", "--peers", "eager,onnxruntime,openvino")
    assert code == 0
    entry = result["models"]["make"]
    assert entry["peers"]["onnxruntime"]["max_rel_err"] < 1e-5
    assert "torch" not in entry["peers"]["onnxruntime"]["imports"]
    assert entry["peers"]["openvino"]["wrong"]
    assert entry["best_peer"] in ("eager", "onnxruntime")
    for names in entry["order"]:
        assert sorted(names) == ["eager", "onnxruntime", "openvino"]
    for peer in entry["peers"].values():
        assert set(peer["round_medians_ms"]) == {"0", "1", "2"}


def test_an_unknown_model_is_a_failure_with_the_nearest_names(tmp_path):
    out = tmp_path / "bench.json"
    arguments = ["--models", "resnet5", "--peers", "eager", "--no-tvmfuse", "--json", str(out)]
    assert bench.main(arguments) == 1
    assert "resnet50" in json.loads(out.read_text())["models"]["resnet5"]["failed"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--peers", "onnxrutime"], "onnxruntime"),
        (["--artifacts", "build", "--trials", "8"], "--trials"),
        (["--no-tvmfuse", "--log-dir", "logs"], "--log-dir"),
        (["--no-tvmfuse", "--peers", ""], "nothing to measure"),
        (["--rounds", "0"], "--rounds must be at least 1"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(arguments, says, capsys):
    assert bench.main(["--models", TINY, *arguments]) == 2
    assert says in capsys.readouterr().err


def test_rounds_are_interleaved_shuffled_and_reproducible():
    names = ["a", "b", "c", "d"]
    order = round_order(names, 12, seed=1)
    assert all(sorted(one) == names for one in order)
    assert len({tuple(one) for one in order}) > 1
    assert order == round_order(names, 12, seed=1) != round_order(names, 12, seed=2)


def test_a_turn_is_cut_for_slow_systems_only():
    assert plan_turn(0.03, 5, 20) == (5, 2, 20)
    assert plan_turn(0.4, 5, 20) == (2, 2, 20)
    assert plan_turn(0.9, 5, 20) == (1, 2, 20)
    assert plan_turn(1.9, 5, 20) == (1, 0, 3)
    assert plan_turn(1.9, 5, 2) == (1, 0, 2)


def test_relative_error_is_to_the_largest_magnitude():
    want = [np.array([1.0, -4.0], "float32")]
    assert relative_error([np.array([1.0, -3.0], "float32")], want) == 0.25
    assert relative_error(want, want) == 0.0
    assert relative_error([np.array([np.nan, np.inf])], [np.array([np.nan, np.inf])]) == 0.0


@pytest.mark.parametrize("answer", [[np.zeros(3)], [], [np.array([np.nan, 0.0])]])
def test_relative_error_is_infinite_where_nothing_compares(answer):
    assert relative_error(answer, [np.ones(2)]) == float("inf")
