"""The command line: what reaches the API, exit codes, and what stdout carries."""

import importlib
import json
import signal
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

import tvmfuse
from tvmfuse import cli
from tvmfuse.errors import ArtifactError

REPORT = {"model": "tiny", "target": "llvm", "verify": {"passed": True}}
SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def fake(monkeypatch, name, **functions):
    """Put a module in the place of ``tvmfuse.<name>``."""
    module = types.ModuleType(f"tvmfuse.{name}")
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, f"tvmfuse.{name}", module)
    monkeypatch.setattr(tvmfuse, name, module, raising=False)


@pytest.fixture
def calls(monkeypatch):
    """Options that reached ``api.run``."""
    seen = []

    def run(options, progress):
        progress.stage("import")
        seen.append(options)
        return REPORT

    fake(monkeypatch, "api", run=run)
    return seen


def test_without_arguments_help_is_printed(capsys):
    assert cli.main([]) == 0
    assert "usage: tvmfuse" in capsys.readouterr().out
    assert cli.main(["log"]) == 0
    assert "merge" in capsys.readouterr().out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tvmfuse {tvmfuse.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["tune"], ["nonsense"], ["tune", "--model", "x", "--shape", "1,a"]]
)
def test_usage_errors_exit_with_2(arguments, capsys):
    assert cli.main(arguments) == 2
    assert "error:" in capsys.readouterr().err


def test_every_option_reaches_the_api(calls, tmp_path):
    arguments = "tune --model m --target llvm:haswell --shape 1,3,8,8 --shape 2x4 --weights random"
    arguments += " --trials 7 --time-budget 9.5 --seed 3 --threads 1 --measure local --retune"
    arguments += " --rules own.toml --no-rule horizontal --no-rule vertical --only compound"
    paths = ["--log-dir", str(tmp_path / "log"), "--output", str(tmp_path / "out")]
    assert cli.main([*arguments.split(), *paths]) == 0
    (options,) = calls
    assert options == tvmfuse.config.CompileOptions(
        model="m", target="llvm:haswell", shape=((1, 3, 8, 8), (2, 4)), weights="random",
        trials=7, time_budget_s=9.5, seed=3, threads=1, measure="local", retune=True,
        log_dir=tmp_path / "log", output=tmp_path / "out", rules=Path("own.toml"),
        no_rule=("horizontal", "vertical"), only=("compound",),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "trials", "budget_s"),
    [
        (["tune"], None, 600.0),
        (["tune", "--trials", "5"], 5, None),
        (["compile"], 0, None),
        (["compile", "--time-budget", "30"], None, 30.0),
    ],
)
def test_default_effort_of_tune_and_compile(calls, arguments, trials, budget_s):
    assert cli.main([*arguments, "--model", "m", "--batch", "2"]) == 0
    assert (calls[0].trials, calls[0].time_budget_s, calls[0].batch) == (trials, budget_s, 2)


def test_json_leaves_nothing_else_on_stdout(calls, capsys):
    assert cli.main(["compile", "--model", "m", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == REPORT
    assert "import" in captured.err


def test_text_report_without_json(calls, capsys):
    assert cli.main(["compile", "--model", "m"]) == 0
    captured = capsys.readouterr()
    assert "tiny, llvm" in captured.out
    assert captured.err == ""


def test_failed_verification_is_not_a_success(monkeypatch, capsys):
    seen = []

    def verify_artifact(path, progress):
        seen.append(path)
        return {"verify": {"passed": False}}

    fake(monkeypatch, "api", verify_artifact=verify_artifact)
    assert cli.main(["verify", "build/x"]) == 1
    assert seen == [Path("build/x")]
    assert "NO" in capsys.readouterr().out


def _raise(error):
    def run(*_):
        raise error

    return run


def test_an_error_is_one_message_and_no_traceback(monkeypatch, capsys):
    fake(monkeypatch, "api", verify_artifact=_raise(ArtifactError("library.so is truncated")))
    assert cli.main(["verify", "d"]) == 1
    assert capsys.readouterr().err == "tvmfuse: library.so is truncated\n"
    assert cli.main(["verify", "d", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_of_ours_is_not_hidden(monkeypatch):
    fake(monkeypatch, "api", verify_artifact=_raise(KeyError("ours")))
    with pytest.raises(KeyError):
        cli.main(["verify", "d"])


def test_missing_extra_is_named(monkeypatch, capsys):
    fake(monkeypatch, "api", verify_artifact=_raise(ModuleNotFoundError("no", name="tvm.relax")))
    assert cli.main(["verify", "d"]) == 1
    assert "needs tvm" in capsys.readouterr().err
    fake(monkeypatch, "api", verify_artifact=_raise(ModuleNotFoundError("no", name="ours")))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["verify", "d"])


def test_refused_options_and_targets_never_reach_the_api(calls, capsys):
    assert cli.main(["tune", "--model", "m", "--dtype", "float8"]) == 1
    assert cli.main(["tune", "--model", "m", "--dtype", "int8"]) == 1
    assert cli.main(["explain", "m", "--dtype", "int8"]) == 1
    assert cli.main(["tune", "--model", "m", "--target", "lvm"]) == 1
    assert calls == []
    assert "did you mean 'llvm'" in capsys.readouterr().err


def test_interrupt_exits_with_130(monkeypatch, capsys):
    fake(monkeypatch, "api", verify_artifact=_raise(KeyboardInterrupt()))
    assert cli.main(["verify", "d"]) == 130
    assert "interrupted" in capsys.readouterr().err


_INTERRUPTED = textwrap.dedent("""
    import sys, time, types
    from tvmfuse import cli
    api = types.ModuleType("tvmfuse.api")
    def verify_artifact(path, progress):
        try:
            print("ready", flush=True); time.sleep(60)
        except KeyboardInterrupt:
            print("kept", flush=True)
            if path.name == "twice":
                try:
                    time.sleep(60)
                finally:
                    print("never reached", flush=True)
        return {"model": "kept"}
    api.verify_artifact = verify_artifact
    sys.modules["tvmfuse.api"] = api
    sys.exit(cli.main(["verify", sys.argv[1]]))
""")


@pytest.mark.parametrize(("name", "code"), [("once", 0), ("twice", 130)])
def test_first_interrupt_keeps_results_and_the_second_exits_at_once(name, code):
    child = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, name],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "kept\n"
        if name == "twice":
            child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == code
    assert ("interrupted twice" in err) == (name == "twice")
    assert "never reached" not in out


def test_log_status_prints_rows_or_says_there_are_none(monkeypatch, capsys, tmp_path):
    rows = [{"key": "x86_64-haswell-2t", "records": 12, "header": {}, "broken_lines": 0}]
    fake(monkeypatch, "database", status=lambda folder: rows if folder == tmp_path else [])
    assert cli.main(["log", "status", "--log-dir", str(tmp_path)]) == 0
    assert "x86_64-haswell-2t       12" in capsys.readouterr().out
    assert cli.main(["log", "status", "--log-dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == rows
    assert cli.main(["log", "status", "--log-dir", "elsewhere"]) == 0
    assert capsys.readouterr().out == "no tuning logs in elsewhere\n"


@pytest.mark.parametrize(
    ("answer", "flags", "cleared"),
    [("y", [], True), ("", [], False), (None, [], False), (None, ["--yes"], True)],
)
def test_log_clear_asks_first(monkeypatch, capsys, answer, flags, cleared):
    seen = []
    fake(monkeypatch, "database", clear=seen.append)
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(isatty=lambda: answer is not None))
    monkeypatch.setattr("builtins.input", lambda _: answer)
    code = cli.main(["log", "clear", "--log-dir", "logs", *flags])
    assert seen == ([Path("logs")] if cleared else [])
    assert code == (1 if answer is None and not flags else 0)


def test_log_merge_passes_sources_and_destination(monkeypatch, capsys):
    seen = []
    fake(monkeypatch, "database", merge=lambda sources, into: seen.append((sources, into)))
    assert cli.main(["log", "merge", "a", "b", "--into", "c"]) == 0
    assert seen == [([Path("a"), Path("b")], Path("c"))]


def test_log_distill_keeps_what_was_asked_for(monkeypatch, capsys):
    seen = []

    def distill(log, keep):
        seen.append((log, keep))
        return 9, 2

    fake(monkeypatch, "database", distill=distill)
    assert cli.main(["log", "distill", "a", "--keep", "2"]) == 0
    assert seen == [(Path("a"), 2)] and "kept 2 of 9 records" in capsys.readouterr().out
    assert cli.main(["log", "distill", "a", "--keep", "0"]) == 1
    assert "--keep must be at least 1, got 0" in capsys.readouterr().err


def test_bench_passes_everything_on_to_the_script(capfd):
    assert (SCRIPTS / "bench.py").is_file()
    done = subprocess.run(
        [sys.executable, "-m", "tvmfuse.cli", "bench", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "--peers" in done.stdout


def test_bench_without_the_scripts_says_where_they_are(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "tvmfuse" / "cli.py"))
    assert cli.main(["bench", "--models", "resnet18"]) == 1
    assert "clone the repository" in capsys.readouterr().err


def test_tune_script_is_tvmfuse_tune():
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "tune.py"), "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "usage: tvmfuse tune" in done.stdout


def test_help_and_log_status_import_neither_tvm_nor_torch(tmp_path):
    if importlib.util.find_spec("tvmfuse.database") is None:
        pytest.fail("tvmfuse.database is missing")
    code = (
        "import sys; from tvmfuse import cli; cli.main(['--help']);"
        f"assert cli.main(['log', 'status', '--log-dir', {str(tmp_path)!r}]) == 0;"
        "assert not {'tvm', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_shapes_carry_element_types(calls):
    shapes = ["--shape", "1,8:int64", "--shape", "2x4"]
    assert cli.main(["compile", "--model", "m", *shapes]) == 0
    assert calls[0].shape == (((1, 8), "int64"), (2, 4))
    assert cli.main(["compile", "--model", "m", "--shape", "1,8:int65"]) == 2


def test_seed_that_pytorch_cannot_take_is_refused(calls, capsys):
    assert cli.main(["compile", "--model", "m", "--seed", str(2**63)]) == 1
    assert "--seed must be at most" in capsys.readouterr().err and calls == []


def test_metric_reaches_the_api(calls, capsys):
    assert cli.main(["compile", "--model", "m", "--metric", "a:b", "--data", "c:d"]) == 0
    assert (calls[0].metric, calls[0].data) == ("a:b", "c:d")
    assert cli.main(["compile", "--model", "m", "--metric", "a:b"]) == 1
    assert "belong together" in capsys.readouterr().err


def test_verify_against_another_model(monkeypatch):
    seen = []

    def verify_artifact(path, progress, **named):
        seen.append((path, named))
        return {"verify": {"passed": True}}

    fake(monkeypatch, "api", verify_artifact=verify_artifact)
    arguments = ["d", "--against", "m", "--batch", "2", "--metric", "a:b", "--data", "c:d"]
    assert cli.main(["verify", *arguments]) == 0
    ((path, named),) = seen
    assert path == Path("d") and named["metric"] == ("a:b", "c:d")
    assert (named["against"].model, named["against"].batch) == ("m", 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give the folder of an artifact"),
        (["d", "--bisect", "m"], "and not both"),
        (["d", "--batch", "2"], "--against"),
        (["d", "--target", "llvm"], "belong to --bisect"),
        (["--bisect", "m", "--metric", "a:b", "--data", "c:d"], "drop --against"),
    ],
)
def test_verify_refuses_what_it_cannot_honour(monkeypatch, capsys, arguments, said):
    fake(monkeypatch, "api")
    assert cli.main(["verify", *arguments]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("culprit", [{"kind": "pass", "name": "5 FoldBatchNorm"}, None])
def test_bisect_names_the_culprit(monkeypatch, capsys, culprit):
    broken = {"zeros": "too far"} if culprit else {}
    found = {"broken": broken, "culprit": culprit, "detail": "said", "builds": 3}
    fake(monkeypatch, "api", bisect_model=lambda options, progress: {"bisect": found})
    assert cli.main(["verify", "--bisect", "m"]) == (1 if culprit else 0)
    out = capsys.readouterr().out
    assert ("pass 5 FoldBatchNorm: said" in out) is bool(culprit)
    assert ("zeros: too far" in out) is bool(culprit)


def test_stability_prints_what_is_in_trouble(monkeypatch, capsys):
    row = {"node": "exp", "what": "value", "largest": 1e6, "place": "net.py:3"}
    report = {"model": "m", "ranges": [{}], "troubled": {"float16": [row], "bfloat16": []}}
    fake(monkeypatch, "api", stability=lambda options, progress: report)
    assert cli.main(["stability", "--model", "m"]) == 0
    out = capsys.readouterr().out
    assert "float16: 1 overflow" in out and "net.py:3" in out and "bfloat16: 0" in out
    assert cli.main(["stability", "--model", "m", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == report
