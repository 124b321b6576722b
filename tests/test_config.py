"""Options: what is filled in, and what is refused with the reason."""

import ast
from pathlib import Path

import pytest

import tvmfuse
from tvmfuse import config
from tvmfuse.config import CompileOptions, environment_threads, shipped_log_dir
from tvmfuse.errors import OptionError


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    monkeypatch.delenv("TVMFUSE_LOG_DIR", raising=False)
    monkeypatch.delenv("TVMFUSE_THREADS", raising=False)


def test_defaults_are_filled_in():
    options = CompileOptions("resnet50")
    assert options.log_dir == Path("tuning_logs")
    assert options.output == Path("build/resnet50-llvm")
    assert options.threads is None


@pytest.mark.parametrize(
    ("model", "target", "folder"),
    [
        ("some/where/net.pt2", "llvm", "net-llvm"),
        ("pkg.mod:make", "llvm:haswell", "pkg.mod-make-llvm-haswell"),
        ("a", '{"kind": "llvm", "mcpu": "haswell"}', "a-kind-llvm-mcpu-haswell"),
    ],
)
def test_output_folder_is_named_after_model_and_target(model, target, folder):
    assert CompileOptions(model, target).output == Path("build") / folder


def test_environment_fills_in_what_is_not_given(monkeypatch):
    monkeypatch.setenv("TVMFUSE_LOG_DIR", "elsewhere")
    monkeypatch.setenv("TVMFUSE_THREADS", "3")
    options = CompileOptions("resnet50")
    assert (options.log_dir, options.threads) == (Path("elsewhere"), 3)


def test_an_option_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("TVMFUSE_LOG_DIR", "elsewhere")
    monkeypatch.setenv("TVMFUSE_THREADS", "3")
    options = CompileOptions("resnet50", log_dir=Path("here"), threads=1)
    assert (options.log_dir, options.threads) == (Path("here"), 1)


@pytest.mark.parametrize("text", ["two", "0", "-1", "1.5", "²"])
def test_malformed_threads_in_the_environment(monkeypatch, text):
    monkeypatch.setenv("TVMFUSE_THREADS", text)
    with pytest.raises(OptionError, match="TVMFUSE_THREADS"):
        environment_threads()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": " "}, "--model is empty"),
        ({"batch": 0}, "--batch must be at least 1, got 0"),
        ({"batch": 2, "shape": ((1, 3, 8, 8),)}, "both given"),
        ({"shape": ((1, 0),)}, "must be positive"),
        ({"shape": ((),)}, "must be positive"),
        ({"dtype": "float8"}, "--dtype float8 is not in this release"),
        ({"dtype": "float16", "fallback": "eager"}, "do not go together"),
        ({"dtype": "int8"}, "--dtype int8 needs data"),
        ({"calibrate": "random"}, "--calibrate belong"),
        ({"dtype": "int8", "calibrate": "random", "observer": "best"}, "minmax, percentile"),
        ({"measure": "rpc"}, "--measure rpc is not in this release.*auto, local"),
        ({"trials": -1}, "--trials must be at least 0"),
        ({"threads": 0}, "--threads must be at least 1"),
        ({"seed": -1}, "--seed"),
        ({"seed": 2**63}, "--seed must be at most"),
        ({"shape": (((1, 8), "int65"),)}, "no element type"),
        ({"shape": (((0, 8), "int64"),)}, "must be positive"),
        ({"accumulation": "kahan"}, "--accumulation kahan is unknown.*plain, compensated"),
        ({"metric": "a:b"}, "belong together"),
        ({"time_budget_s": 0.0}, "use --trials 0"),
        ({"time_budget_s": float("nan")}, "--time-budget"),
        ({"time_budget_s": float("inf")}, "--time-budget"),
        ({"retune": True, "trials": 0}, "--retune"),
        ({"no_log": True, "trials": 4}, "--no-log"),
        ({"no_log": True, "time_budget_s": 4.0}, "--no-log"),
        ({"weights": "absent.pt"}, "absent.pt: no such file"),
    ],
)
def test_options_that_cannot_be_honoured(change, message):
    with pytest.raises(OptionError, match=message):
        CompileOptions(**({"model": "resnet50"} | change))


def test_weights_may_be_random_or_a_file(tmp_path):
    (tmp_path / "w.pt").write_bytes(b"x")
    assert CompileOptions("resnet50", weights="random").weights == "random"
    assert CompileOptions("resnet50", weights=str(tmp_path / "w.pt")).weights


def test_shipped_logs_are_found_in_a_wheel_and_in_a_checkout(monkeypatch, tmp_path):
    package = tmp_path / "tvmfuse"
    package.mkdir()
    monkeypatch.setattr(config, "__file__", str(package / "config.py"))
    (tmp_path / "tuning_logs").mkdir()
    assert shipped_log_dir() is None  # a stranger's folder beside the package is not ours
    (tmp_path / "pyproject.toml").touch()
    assert shipped_log_dir() == tmp_path / "tuning_logs"
    (package / "tuning_logs").mkdir()
    assert shipped_log_dir() == package / "tuning_logs"


def test_nothing_else_reads_the_environment():
    package = Path(tvmfuse.__file__).parent
    readers = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
                readers.add(path.relative_to(package).as_posix())
    assert readers <= {"config.py"}
