"""The options of every command, as data where they are many; values are checked in config."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tvmfuse import __version__
from tvmfuse.config import DEFAULT_TUNE_BUDGET_S, ELEMENT_TYPES, InputShape

_EPILOG = """\
environment:
  TVMFUSE_LOG_DIR   folder of the tuning logs (default: tuning_logs)
  TVMFUSE_THREADS   threads a kernel may use (default: all CPUs of the process)

exit codes: 0 done, 1 refused or failed with a message, 2 usage, 130 interrupted
"""


def parse_shape(text: str) -> InputShape:
    """Parse ``1,3,224,224``, ``1x3x224x224`` or, with an element type, ``1,128:int64``."""
    extents, colon, dtype = text.partition(":")
    try:
        shape = tuple(int(part) for part in extents.replace("x", ",").split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no shape; write its extents like 1,3,224,224, and an element type "
            "behind them like 1,128:int64"
        ) from None
    if colon and dtype not in ELEMENT_TYPES:
        raise argparse.ArgumentTypeError(
            f"{dtype!r} in {text!r} is no element type; choose from {', '.join(ELEMENT_TYPES)}"
        )
    return (shape, dtype) if colon else shape


# Options of `tune` and `compile`: group -> flag -> arguments of add_argument.
_MODEL_OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "model": {
        "--model": {"required": True, "metavar": "NAME|MODULE:CALLABLE|FILE",
                    "help": "a name (torchvision's, yolov5s, dlrm), hf:NAME, timm:NAME, "
                            "package.module:callable, or FILE.pt2"},
        "--batch": {"type": int, "metavar": "N", "help": "first extent of every input"},
        "--shape": {"type": parse_shape, "action": "append", "metavar": "N,C,H,W[:TYPE]",
                    "help": "shape of an input, and its element type where that is not float32 "
                            "or the example's own (1,128:int64); repeat for several inputs"},
        "--dtype": {"default": "float32",
                    "help": "float32 (the model's own types, the default), float16 or bfloat16 "
                            "(halves for the operands of convolutions and products), or int8 "
                            "(quantised with --calibrate)"},
        "--weights": {"metavar": "FILE|random", "help": "a state dict, or 'random'"},
        "--seed": {"type": int, "default": 0, "metavar": "N",
                   "help": "of random weights, inputs and the search (default: 0)"},
    },
    "target": {
        "--target": {"default": "llvm", "metavar": "TARGET",
                     "help": "llvm (this CPU, the default), llvm:CPU (e.g. llvm:haswell), "
                             "cuda (this GPU), t4, a100, h200, jetson-orin, ..., or a JSON "
                             "target"},
        "--threads": {"type": int, "metavar": "N", "help": "threads a kernel may use"},
    },
    "search": {
        "--trials": {"type": int, "metavar": "N",
                     "help": "candidates to measure; 0: templates only (the default of "
                             "compile, if --time-budget is not given)"},
        "--time-budget": {"type": float, "metavar": "SECONDS", "dest": "time_budget_s",
                          "help": "time for tuning (default of tune, if --trials is not "
                                  f"given: {DEFAULT_TUNE_BUDGET_S:g})"},
        "--measure": {"default": "auto", "help": "auto (the default), local (here) or none"},
        "--retune": {"action": "store_true", "help": "measure again what the log holds"},
    },
    "what cannot be compiled": {
        "--fallback": {"default": "none",
                       "help": "none (refuse the model, the default) or eager (PyTorch runs it "
                               "between compiled parts; the artifact then needs PyTorch)"},
    },
    "quantisation (--dtype int8)": {
        "--calibrate": {"metavar": "MODULE:FUNCTION|random",
                        "help": "function() that gives batches of the model's arguments"},
        "--observer": {"help": "how ranges follow: minmax (the default) or percentile"},
    },
    "numbers": {
        "--accumulation": {"default": "plain",
                           "help": "plain (the default) or compensated: norms, means, variances "
                                   "and softmax correct what their sums lose, and take longer"},
    },
    "verification": {
        "--metric": {"metavar": "MODULE:FUNCTION",
                     "help": "function(outputs, data) -> number; it fails when eager's number is "
                             "more than 0.1 %% away"},
        "--data": {"metavar": "MODULE:CALLABLE|FILE.pt",
                   "help": "pairs (inputs, data), one a batch, for --metric"},
    },
    "fusion": {
        "--rules": {"type": Path, "metavar": "FILE", "help": "rules of your own (.toml or .py)"},
        "--no-rule": {"action": "append", "default": [], "metavar": "NAME|CATEGORY",
                      "help": "switch a rule or a category off; may be repeated"},
        "--only": {"action": "append", "default": [], "metavar": "NAME|CATEGORY",
                   "help": "switch all other rules off; may be repeated"},
    },
    "files": {
        "--log-dir": {"type": Path, "metavar": "DIR", "help": "folder of the tuning logs"},
        "--no-log": {"action": "store_true",
                     "help": "read no log, not even the shipped one: templates only"},
        "--output": {"type": Path, "metavar": "DIR",
                     "help": "folder of the artifact (default: build/MODEL-TARGET)"},
    },
}  # fmt: skip

_HELP = {
    "tune": "search for fast kernels, then build, verify and save",
    "compile": "build, verify and save with the log and the templates",
    "bench": "compare with other runtimes (options: tvmfuse bench --help)",
    "explain": "show what a model consists of, what is fused, what is not, and why",
    "verify": "check an artifact against the model that it was made from, or another one",
    "diagnose": "where an artifact's time goes, kernel by kernel, against this machine",
    "stability": "which values overflow or underflow in float16 and bfloat16, and where",
    "log": "look after tuning logs",
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; ``parsed.command`` names the command, e.g. ``"log status"``.

    ``bench`` is listed here, but parses its own options.
    """
    parser = argparse.ArgumentParser(
        prog="tvmfuse",
        description="Compile PyTorch models to fused, tuned, verified and importable modules.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tvmfuse {__version__}")
    parser.set_defaults(command=None, help_of=parser)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print JSON on stdout, nothing else")
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in ("tune", "compile"):
        command = _add(commands, name, common)
        for title, options in _MODEL_OPTIONS.items():
            group = command.add_argument_group(title)
            for flag, arguments in options.items():
                group.add_argument(flag, **arguments)
    commands.add_parser("bench", help=_HELP["bench"])
    _add_explain(commands, common)
    _add_verify(commands, common)
    diagnose = _add(commands, "diagnose", common)
    diagnose.add_argument("artifact", type=Path, metavar="DIR", help="folder of the artifact")
    diagnose.add_argument("--threads", **_MODEL_OPTIONS["target"]["--threads"])
    diagnose.add_argument("--seconds", type=float, default=3.0, metavar="S",
                          help="how long to call it (default: 3)")  # fmt: skip
    diagnose.add_argument("--rows", type=int, default=20, metavar="N",
                          help="kernels to print (default: 20); --json has all")  # fmt: skip
    stability = _add(commands, "stability", common)
    for flag, arguments in _MODEL_OPTIONS["model"].items():
        if flag != "--dtype":
            stability.add_argument(flag, **arguments)
    _add_log(commands, common)
    return parser


def _add(commands: Any, name: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
    text = _HELP[name]
    command: argparse.ArgumentParser = commands.add_parser(
        name, parents=list(parents), help=text, description=f"{text[0].upper()}{text[1:]}."
    )
    command.set_defaults(command=name)
    return command


def _add_verify(commands: Any, common: argparse.ArgumentParser) -> None:
    verify = _add(commands, "verify", common)
    verify.add_argument(
        "artifact", type=Path, nargs="?", metavar="DIR", help="folder of the artifact"
    )
    model = dict(_MODEL_OPTIONS["model"])
    what = {"metavar": model.pop("--model")["metavar"]}
    del model["--dtype"]
    verify.add_argument("--against", help="the model to compare with", **what)
    verify.add_argument(
        "--bisect", help="find the pass or the rule that breaks this model; without DIR", **what
    )
    for flag, arguments in (model | _MODEL_OPTIONS["target"]).items():
        verify.add_argument(flag, **{**arguments, "default": None})
    for flag, arguments in _MODEL_OPTIONS["verification"].items():
        verify.add_argument(flag, **arguments)


def _add_explain(commands: Any, common: argparse.ArgumentParser) -> None:
    command = _add(commands, "explain", common)
    command.add_argument("model", metavar="MODEL", help=_MODEL_OPTIONS["model"]["--model"]["help"])
    for title in ("model", "target", "fusion"):
        group = command.add_argument_group(title)
        for flag, arguments in _MODEL_OPTIONS[title].items():
            if flag != "--model":
                group.add_argument(flag, **arguments)
    logs = command.add_argument_group("measured verdicts")
    for flag in ("--log-dir", "--no-log"):
        logs.add_argument(flag, **_MODEL_OPTIONS["files"][flag])
    wanted = command.add_argument_group("what is wanted beside the fusion table")
    wanted.add_argument("--graph", nargs="?", const="relax", default="", choices=("relax", "fx"),
                        help="work, traffic and roofline side of the operators: after import "
                             "(relax, the default) or before it (fx)")  # fmt: skip
    wanted.add_argument("--profile", type=Path, metavar="FILE",
                        help="join the times of a torch.profiler trace")  # fmt: skip
    wanted.add_argument("--why", default="", metavar="RULE",
                        help="the match that came furthest, and why it stopped")  # fmt: skip
    wanted.add_argument("--device", default="", metavar="GPU",
                        help="compare with the limits of a GPU (t4, a100, ...)")  # fmt: skip


def _add_log(commands: Any, common: argparse.ArgumentParser) -> None:
    log = commands.add_parser("log", help=_HELP["log"])
    log.set_defaults(help_of=log)
    actions = log.add_subparsers(title="commands", metavar="COMMAND")
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--log-dir", type=Path, metavar="DIR", help="folder of the tuning logs")
    status = actions.add_parser("status", parents=[common, where], help="what the logs hold")
    status.set_defaults(command="log status")
    clear = actions.add_parser("clear", parents=[common, where], help="delete the logs' records")
    clear.add_argument("--yes", action="store_true", help="do not ask")
    clear.set_defaults(command="log clear")
    merge = actions.add_parser("merge", parents=[common], help="put several logs into one")
    merge.add_argument("sources", nargs="+", type=Path, metavar="SOURCE", help="folders to read")
    merge.add_argument("--into", required=True, type=Path, metavar="DIR", help="folder to write")
    merge.set_defaults(command="log merge")
    distill = actions.add_parser("distill", parents=[common], help="keep the best records only")
    distill.add_argument("log", type=Path, metavar="LOG", help="folder of one target's log")
    distill.add_argument("--keep", type=int, default=1, metavar="N", help="records a kernel")
    distill.set_defaults(command="log distill")
