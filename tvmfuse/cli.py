"""The command line. It imports argparse and the errors; all else when a command needs it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tvmfuse.arguments import build_parser
from tvmfuse.config import DEFAULT_TUNE_BUDGET_S, CompileOptions, default_log_dir
from tvmfuse.errors import OptionError, TvmfuseError

EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

# Distributions of the extras; a deployed machine lacks them, and that is no fault.
_EXTRAS = {"tvm": "compile", "torch": "compile", "xgboost": "compile", "cloudpickle": "compile",
           "filelock": "compile", "psutil": "compile", "torchvision": "zoo"}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv
        Arguments without the program's name; by default those of the process.

    Returns
    -------
    int
        0 done, 1 a TvmfuseError (its message is on stderr), 2 usage, 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["bench"]:  # scripts/bench.py parses its own options, --help included
        return _guarded(lambda: _bench(arguments[1:]), debug=False)
    try:
        parsed = build_parser().parse_args(arguments)
    except SystemExit as stop:  # argparse has printed help, the version or a usage message
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE
    if parsed.command is None:
        parsed.help_of.print_help()
        return EXIT_OK
    return _guarded(lambda: _COMMANDS[parsed.command](parsed), debug=parsed.debug)


def options_of(parsed: Namespace) -> CompileOptions:
    """Options of ``tune`` and ``compile``; raises OptionError."""
    return CompileOptions(
        model=parsed.model,
        target=parsed.target,
        batch=parsed.batch,
        shape=tuple(parsed.shape) if parsed.shape else None,
        dtype=parsed.dtype,
        calibrate=parsed.calibrate,
        observer=parsed.observer,
        weights=parsed.weights,
        trials=parsed.trials,
        time_budget_s=parsed.time_budget_s,
        log_dir=parsed.log_dir,
        output=parsed.output,
        seed=parsed.seed,
        measure=parsed.measure,
        threads=parsed.threads,
        retune=parsed.retune,
        no_log=parsed.no_log,
        fallback=parsed.fallback,
        accumulation=parsed.accumulation,
        metric=parsed.metric,
        data=parsed.data,
        rules=parsed.rules,
        no_rule=tuple(parsed.no_rule),
        only=tuple(parsed.only),
    )


def _tune(parsed: Namespace) -> int:
    if parsed.trials is None and parsed.time_budget_s is None and not parsed.no_log:
        from tvmfuse.hardware import resolve_target

        if resolve_target(parsed.target, parsed.threads).gpu is not None:
            parsed.trials = 0  # a GPU's kernels cannot be measured yet, which the banner says
        elif parsed.measure != "none":
            parsed.time_budget_s = DEFAULT_TUNE_BUDGET_S
    return _run(parsed)


def _compile(parsed: Namespace) -> int:
    if parsed.trials is None and parsed.time_budget_s is None:
        parsed.trials = 0
    return _run(parsed)


def _run(parsed: Namespace) -> int:
    options = options_of(parsed)
    from tvmfuse.hardware import resolve_target

    resolve_target(options.target, options.threads)  # refuses within milliseconds, api in seconds
    from tvmfuse import api

    with _progress(parsed.json) as progress:
        report = api.run(options, progress)
    return _answer(report, parsed.json)


def _explain(parsed: Namespace) -> int:
    if parsed.dtype == "int8":
        raise OptionError(
            "explain calibrates nothing: name a model that is quantised already (.pt2, .onnx)"
        )
    options = CompileOptions(
        model=parsed.model,
        target=parsed.target,
        batch=parsed.batch,
        shape=tuple(parsed.shape) if parsed.shape else None,
        dtype=parsed.dtype,
        weights=parsed.weights,
        seed=parsed.seed,
        threads=parsed.threads,
        rules=parsed.rules,
        no_rule=tuple(parsed.no_rule),
        only=tuple(parsed.only),
        log_dir=parsed.log_dir,
        no_log=parsed.no_log,
    )
    from tvmfuse.explain import Asked, explain
    from tvmfuse.report.explanation import format_explanation

    answer = explain(options, Asked(parsed.graph, parsed.why, parsed.profile, parsed.device))
    print(json.dumps(answer, indent=2) if parsed.json else format_explanation(answer))
    return EXIT_OK


def _verify(parsed: Namespace) -> int:
    if (parsed.artifact is None) == (parsed.bisect is None):
        raise OptionError("give the folder of an artifact, or --bisect MODEL, and not both")
    if parsed.bisect is not None:
        return _bisect(parsed)
    for_bisect = [f"--{n}" for n in ("target", "threads") if getattr(parsed, n) is not None]
    if for_bisect:
        raise OptionError(f"{' and '.join(for_bisect)} belong to --bisect: an artifact has its own")
    known = ("batch", "shape", "weights", "seed")
    given = [f"--{name}" for name in known if getattr(parsed, name) is not None]
    if given and parsed.against is None:
        raise OptionError(
            f"{' and '.join(given)} describe the model of --against, which is not given; without "
            "it the artifact's own manifest says how its model was made"
        )
    named: dict[str, Any] = {}
    if parsed.against is not None:
        named["against"] = _model_options(parsed, parsed.against)
    if parsed.metric or parsed.data:
        named["metric"] = (parsed.metric, parsed.data)
    from tvmfuse import api

    with _progress(parsed.json) as progress:
        report = api.verify_artifact(parsed.artifact, progress, **named)
    return _answer(report, parsed.json)


def _model_options(parsed: Namespace, model: str) -> CompileOptions:
    """Options of a command that names a model but compiles nothing that stays."""
    shape = tuple(parsed.shape) if parsed.shape else None
    named = {n: v for n in ("target", "threads") if (v := getattr(parsed, n, None)) is not None}
    return CompileOptions(
        model, batch=parsed.batch, shape=shape, weights=parsed.weights, seed=parsed.seed or 0,
        **named,
    )  # fmt: skip


def _bisect(parsed: Namespace) -> int:
    if parsed.metric or parsed.data or parsed.against:
        raise OptionError("--bisect compares with eager alone; drop --against, --metric and --data")
    options = _model_options(parsed, parsed.bisect)
    from tvmfuse import api

    with _progress(parsed.json) as progress:
        report = api.bisect_model(options, progress)
    found = report["bisect"]
    if parsed.json:
        print(json.dumps(report, indent=2))
    else:
        culprit = found["culprit"]
        print((f"{culprit['kind']} {culprit['name']}: " if culprit else "") + found["detail"])
        for kind, why in found["broken"].items():
            print(f"  {kind}: {why}")
    return EXIT_ERROR if found["broken"] else EXIT_OK


def _diagnose(parsed: Namespace) -> int:
    if parsed.seconds <= 0 or parsed.rows < 1:
        raise OptionError(f"--seconds {parsed.seconds:g} and --rows {parsed.rows} must be positive")
    from tvmfuse.diagnose import diagnose
    from tvmfuse.report.tables import format_diagnosis

    found = diagnose(parsed.artifact, parsed.threads, parsed.seconds)
    print(json.dumps(found, indent=2) if parsed.json else format_diagnosis(found, parsed.rows))
    return EXIT_OK


def _stability(parsed: Namespace) -> int:
    options = _model_options(parsed, parsed.model)
    from tvmfuse import api
    from tvmfuse.report.tables import format_table

    with _progress(parsed.json) as progress:
        report = api.stability(options, progress)
    if parsed.json:
        print(json.dumps(report, indent=2))
        return EXIT_OK
    print(f"{report['model']}: {len(report['ranges'])} values and sums in float64")
    for dtype, rows in report["troubled"].items():
        print(f"{dtype}: {len(rows)} overflow or underflow" + (":" if rows else ""))
        if rows:
            print(format_table(rows))
    return EXIT_OK


def _progress(as_json: bool) -> Any:
    from tvmfuse.report.progress import Progress

    return Progress(sys.stderr if as_json else sys.stdout)


def _answer(report: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        from tvmfuse.report.tables import format_report

        print(format_report(report))
    failed = (report.get("verify") or {}).get("passed") is False
    return EXIT_ERROR if failed else EXIT_OK


def _bench(arguments: list[str]) -> int:
    scripts = Path(__file__).resolve().parent.parent / "scripts"
    if not (scripts / "bench.py").is_file():
        raise OptionError(
            "this installation has no scripts/bench.py (wheels carry the package alone); clone "
            "the repository, install it with `pip install -e '.[compile,zoo,bench]'` and run "
            "`tvmfuse bench` or `python scripts/bench.py` from there"
        )
    import importlib.util

    sys.path.insert(0, str(scripts))  # as if it were run as a script: its helpers lie beside it
    spec = importlib.util.spec_from_file_location("bench", scripts / "bench.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench"] = module
    spec.loader.exec_module(module)
    return int(module.main(arguments))


_STATUS_COLUMNS = ("key", "tasks", "records", "size_bytes", "broken_lines", "error")


def _log_status(parsed: Namespace) -> int:
    from tvmfuse import database
    from tvmfuse.report.tables import format_table

    folder = parsed.log_dir or default_log_dir()
    rows = database.status(folder)
    if parsed.json:
        print(json.dumps(rows, indent=2))
    else:
        columns = [c for c in _STATUS_COLUMNS if any(row.get(c) for row in rows)]
        print(format_table(rows, columns) if rows else f"no tuning logs in {folder}")
    return EXIT_OK


def _log_clear(parsed: Namespace) -> int:
    folder = parsed.log_dir or default_log_dir()
    if not parsed.yes:
        if not sys.stdin.isatty():
            raise OptionError(f"this would delete all records in {folder}; add --yes to do so")
        if input(f"delete all records in {folder}? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing deleted", file=sys.stderr)
            return EXIT_OK
    from tvmfuse import database

    database.clear(folder)
    print(json.dumps({"cleared": str(folder)}) if parsed.json else f"cleared {folder}")
    return EXIT_OK


def _log_merge(parsed: Namespace) -> int:
    from tvmfuse import database

    database.merge(parsed.sources, parsed.into)
    said = {"merged": [str(source) for source in parsed.sources], "into": str(parsed.into)}
    text = f"merged {', '.join(said['merged'])} into {parsed.into}"
    print(json.dumps(said) if parsed.json else text)
    return EXIT_OK


def _log_distill(parsed: Namespace) -> int:
    if parsed.keep < 1:
        raise OptionError(f"--keep must be at least 1, got {parsed.keep}")
    from tvmfuse import database

    before, after = database.distill(parsed.log, parsed.keep)
    answer = {"log": str(parsed.log), "records_before": before, "records_after": after}
    text = f"kept {after} of {before} records in {parsed.log}"
    print(json.dumps(answer) if parsed.json else text)
    return EXIT_OK


_COMMANDS: dict[str, Callable[[Namespace], int]] = {
    "tune": _tune,
    "compile": _compile,
    "explain": _explain,
    "verify": _verify,
    "diagnose": _diagnose,
    "stability": _stability,
    "log status": _log_status,
    "log clear": _log_clear,
    "log merge": _log_merge,
    "log distill": _log_distill,
}


def _guarded(run: Callable[[], int], debug: bool) -> int:
    """Run a command; turn errors and interrupts into exit codes."""
    try:
        with _interrupts():
            return run()
    except TvmfuseError as error:
        if debug:
            traceback.print_exc()
        else:
            print(f"tvmfuse: {error}", file=sys.stderr)
        return EXIT_ERROR
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS or debug:
            raise
        print(
            f"tvmfuse: this command needs {missing}, which is not installed; "
            "pip install 'tvmfuse[compile,zoo]' brings it",
            file=sys.stderr,
        )
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("tvmfuse: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader has gone, e.g. `tvmfuse log status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """First Ctrl-C: KeyboardInterrupt, which the search keeps its results on. Second: exit."""
    seen = 0

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            os.write(2, b"\ntvmfuse: interrupted twice, exiting at once\n")
            os._exit(EXIT_INTERRUPTED)
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGINT, handle)
    except ValueError:  # not the main thread, which alone may set handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(main())
