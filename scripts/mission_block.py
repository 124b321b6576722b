"""One block of a network, timed with ``torch.utils.benchmark``: conv, batch norm and relu.

    python scripts/mission_block.py --trials 64 --log-dir tuning_logs --json block.json

The block is ``conv2d(64, 64, 3x3, no bias) + batch norm + relu`` on (1, 64, 224, 224), float32.
Four systems run it in this one process with the same weights, input and number of threads, in
turns, so that none has a quieter machine than the others: PyTorch eager, ``torch.compile`` with
freezing, this package with every rule of fusion switched off, and this package. The last two are
tuned with the same number of trials. Answers are compared with eager's before anything is timed.
Behind that the kernels of our two builds are timed one by one: where the difference comes from.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.benchmark import Timer

from tvmfuse import api
from tvmfuse.diagnose import diagnose
from tvmfuse.errors import TvmfuseError
from tvmfuse.frontend.weights import reset_random
from tvmfuse.fusion.group import CATEGORIES
from tvmfuse.report.tables import format_diagnosis
from tvmfuse.runtime import load

SHAPE = (1, 64, 224, 224)
UNDER_EAGER, UNDER_UNFUSED, OF_INDUCTOR = 0.398, 0.398, 0.95  # what is to be reached
TOLERANCE = 1e-4  # relative to the largest magnitude: Winograd rounds more than a direct sum

Call = Callable[[], Any]


def block(seed: int = 0) -> nn.Module:
    """The block with random weights and batch statistics."""
    module = nn.Sequential(
        nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()
    )
    reset_random(module, seed)
    return module.eval()


def main() -> None:
    """Build the systems, compare their answers, time them, and print the ratios."""
    options = _parser().parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    module, x = block(options.seed), torch.randn(options.shape)
    with tempfile.TemporaryDirectory() as folder:
        calls = systems(module, x, options, Path(folder))
        errors = check(calls)
        times = timed(calls, options.threads, options.rounds, options.seconds)
        kernels = {
            name: diagnose(Path(folder) / name, options.threads, options.seconds)
            for name in ("unfused", "fused")
        }
    result = summary(times, errors) | {
        "threads": options.threads,
        "trials": options.trials,
        "shape": list(options.shape),
        "kernels": kernels,
    }
    print(table(result))
    for found in kernels.values():
        print(format_diagnosis(found, len(found["kernels"])))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(page(result), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--trials", type=int, default=64, help="for each of the two builds")
    parser.add_argument("--rounds", type=int, default=7, help="turns of all systems")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing, a system and turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-dir", type=Path, default=None, help="folder of the tuning logs")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--markdown", type=Path, help="write a page there")
    parser.add_argument(
        "--shape", type=lambda t: tuple(map(int, t.split(","))), default=SHAPE,
        help="of the input, to try the script on a smaller one",
    )  # fmt: skip
    return parser


def systems(
    module: nn.Module, x: torch.Tensor, options: argparse.Namespace, folder: Path
) -> dict[str, Call]:
    """The four systems, each as a function without arguments that gives the answer."""
    import torch._inductor.config as inductor_config

    inductor_config.freezing = True
    frozen = torch.compile(module)
    ours = {}
    for name, off in (("unfused", CATEGORIES), ("fused", ())):
        compiled = api.compile(
            module, (x,), threads=options.threads, trials=options.trials, seed=options.seed,
            log_dir=options.log_dir, no_rule=off,
        )  # fmt: skip
        compiled.save(folder / name)
        ours[name] = load(folder / name, threads=options.threads)
    array = x.numpy()
    return {
        "eager": _without_gradients(module, x),
        "torch.compile (freezing)": _without_gradients(frozen, x),
        "tvmfuse, unfused": lambda: ours["unfused"](array),
        "tvmfuse": lambda: ours["fused"](array),
    }


def _without_gradients(module: Any, x: torch.Tensor) -> Call:
    def call() -> Any:
        with torch.no_grad():
            return module(x)

    return call


def check(calls: dict[str, Call]) -> dict[str, float]:
    """Largest error of each system against eager, relative to the largest magnitude."""
    want = torch.as_tensor(calls["eager"]()).double()
    errors = {}
    for name, call in calls.items():
        got = torch.from_dlpack(call()).double()
        errors[name] = float((got - want).abs().max() / want.abs().max())
        if not errors[name] <= TOLERANCE:
            sys.exit(f"{name} is wrong: relative error {errors[name]:.2g}, {TOLERANCE:g} at most")
    return errors


def timed(
    calls: dict[str, Call], threads: int, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Median milliseconds of every system in each round, one behind the other."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            timer = Timer("call()", globals={"call": call}, num_threads=threads)
            found[name].append(timer.blocked_autorange(min_run_time=seconds).median * 1e3)
    return found


def summary(times: dict[str, list[float]], errors: dict[str, float]) -> dict[str, Any]:
    """Medians over the rounds, and the three ratios with what is to be reached."""
    ms = {name: statistics.median(rounds) for name, rounds in times.items()}
    eager, inductor, unfused, ours = ms.values()
    reached = {
        "under eager": (1 - ours / eager, UNDER_EAGER, 1 - ours / eager >= UNDER_EAGER),
        "under unfused": (1 - ours / unfused, UNDER_UNFUSED, 1 - ours / unfused >= UNDER_UNFUSED),
        "of torch.compile": (ours / inductor, OF_INDUCTOR, ours / inductor <= OF_INDUCTOR),
    }
    return {
        "ms": ms,
        "rounds_ms": times,
        "errors": errors,
        "ratios": {
            k: {"is": r, "to_reach": goal, "reached": yes} for k, (r, goal, yes) in reached.items()
        },
    }


def table(result: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [f"{'system':28} {'median ms':>10} {'fastest':>10} {'slowest':>10} {'error':>9}"]
    for name, ms in result["ms"].items():
        rounds = result["rounds_ms"][name]
        lines.append(
            f"{name:28} {ms:10.3f} {min(rounds):10.3f} {max(rounds):10.3f} "
            f"{result['errors'][name]:9.1e}"
        )
    for name, row in result["ratios"].items():
        said = "reached" if row["reached"] else "NOT reached"
        sign = "at most" if name.startswith("of") else "at least"
        lines.append(f"{name:28} {row['is']:10.1%}  ({sign} {row['to_reach']:.1%}: {said})")
    return "\n".join(lines)


def page(result: dict[str, Any]) -> str:
    """The figures and the kernels as a page of documentation."""
    today = datetime.now(timezone.utc)
    lines = [
        "# The block", "",
        f"Generated by `python scripts/mission_block.py --trials {result['trials']} --threads "
        f"{result['threads']}`, {today:%Y-%m-%d}: conv2d(64, 64, 3x3, no bias) + batch norm + relu "
        f"on {tuple(result['shape'])}, float32, timed with `torch.utils.benchmark`, all systems in "
        "turns in one process; medians of the turns.", "",
        "| system | ms | fastest | slowest | error |", "|---|---:|---:|---:|---:|",
    ]  # fmt: skip
    for name, ms in result["ms"].items():
        rounds = result["rounds_ms"][name]
        error = result["errors"][name]
        lines.append(f"| {name} | {ms:.2f} | {min(rounds):.2f} | {max(rounds):.2f} | {error:.1e} |")
    lines += ["", "| ratio | is | asked | |", "|---|---:|---:|---|"]
    for name, row in result["ratios"].items():
        sign = "at most" if name.startswith("of") else "at least"
        said = "reached" if row["reached"] else "not reached"
        lines.append(f"| {name} | {row['is']:.1%} | {sign} {row['to_reach']:.1%} | {said} |")
    for name, found in result["kernels"].items():
        lines += [
            "", f"Kernels of our {name} build, {found['kernels_us']:.0f} us:", "",
            "| operators | us | time | GFLOP/s | GB/s |", "|---|---:|---:|---:|---:|",
        ]  # fmt: skip
        lines += [
            f"| {' '.join(row['ops'])} | {row['us']:.0f} | {row['share']:.0%} | "
            f"{row['gflops']:.0f} | {row['gbytes']:.0f} |"
            for row in found["kernels"]
        ]
    return "\n".join([*lines, "", limit(result["kernels"]), ""])


def limit(kernels: dict[str, dict[str, Any]]) -> str:
    """How far under the unfused build fusion alone can come, if all but products were free."""
    unfused = kernels["unfused"]
    product = sum(row["us"] for row in unfused["kernels"] if "conv2d" in row["ops"])
    whole = sum(row["us"] for row in unfused["kernels"])
    return (
        f"The convolution itself takes {product / whole:.0%} of the unfused build's kernels. Both "
        "builds compute it by the same algorithm, which fusion does not change: if all other "
        f"kernels cost nothing, the fused build would be {1 - product / whole:.1%} under it."
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    try:
        main()
    except TvmfuseError as error:
        sys.exit(str(error))
