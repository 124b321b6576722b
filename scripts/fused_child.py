"""One model for ``fused_vs_unfused.py``, in a process of its own: tune two builds, time both."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tvmfuse import api
from tvmfuse.config import CompileOptions
from tvmfuse.database import TuningLog
from tvmfuse.frontend.import_model import import_model
from tvmfuse.fusion.group import CATEGORIES
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import lowering
from tvmfuse.report.progress import Progress
from tvmfuse.run import rules_of, source_of
from tvmfuse.runtime import load
from tvmfuse.runtime.timing import random_input
from tvmfuse.settle import Bench, settle
from tvmfuse.signature import unflatten
from tvmfuse.tuning.measure import LocalMeasurer
from tvmfuse.tuning.task import weight_bytes

BUILDS = ("unfused", "fused")
_WARM_UP = 3


def options_of(asked: dict[str, Any], build: str, folder: Path) -> CompileOptions:
    """Options of one build; both share one tuning log, as their kernels differ."""
    return CompileOptions(
        asked["model"],
        weights="random",
        trials=asked["trials"],
        time_budget_s=asked["time_budget_s"],
        threads=asked["threads"],
        log_dir=Path(asked["log_dir"]),
        no_rule=CATEGORIES if build == "unfused" else (),
        output=folder / build,
    )


def interleaved(folder: Path, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of both artifacts in turns; a round is ``seconds`` of calls of each."""
    models = {build: load(folder / build, threads=threads) for build in BUILDS}
    generator = np.random.default_rng(0)
    signature = models["fused"].signature
    leaves = [random_input(spec, generator) for spec in signature.inputs]
    arguments = unflatten(signature.input_tree, leaves)
    for model in models.values():
        for _ in range(_WARM_UP):
            model(*arguments)
    medians: dict[str, list[float]] = {build: [] for build in BUILDS}
    for _ in range(rounds):
        for build, model in models.items():
            medians[build].append(_median_ms(model, arguments, seconds))
    ratios = [f / u for f, u in zip(medians["fused"], medians["unfused"], strict=True)]
    return {
        **{f"{build}_ms": statistics.median(ms) for build, ms in medians.items()},
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def _median_ms(model: Any, arguments: Any, seconds: float) -> float:
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        model(*arguments)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def groups(options: CompileOptions, folder: Path) -> list[dict[str, Any]]:
    """Every distinct group against its parts, both with the best kernels that tuning found.

    The verdicts go to a log of their own, which reads the tuned one and leaves it as it is.
    """
    hardware = resolve_target(options.target, options.threads)
    rules = rules_of(options)
    low, _ = lowering(import_model(**source_of(options)), hardware, rules.merging)
    assert options.log_dir is not None
    tuned, own = options.log_dir / hardware.key, folder / "verdicts"
    with TuningLog.open(own, hardware, True, shipped=tuned) as log:
        size = weight_bytes(settle(low, hardware, rules, log).groups)
        with LocalMeasurer(hardware, model_bytes=size) as measurer:
            return settle(low, hardware, rules, log, Bench(measurer, again=True)).to_json()


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Tune and build both, time them in turns, and compare group by group."""
    folder = Path(asked["folder"])
    progress = Progress(sys.stderr)
    reports = {}
    for build in BUILDS:
        report = api.run(options_of(asked, build, folder), progress)
        reports[build] = {
            "kernels": report["kernels"]["after"],
            "trials": report["trials"],
            "records": report["records"],
            "tune_s": report["wall_s"].get("tune", 0.0),
            "split": [v for v in report["verdicts"] if not v["fused"]],
        }
    fused = options_of(asked, "fused", folder)
    timing = interleaved(folder, fused_threads(fused), asked["rounds"], asked["seconds"])
    quiet = dataclasses.replace(fused, trials=0, time_budget_s=None)
    return {"model": asked["model"], "builds": reports, **timing, "groups": groups(quiet, folder)}


def fused_threads(options: CompileOptions) -> int:
    """Threads of the target, as the artifact was compiled for."""
    return resolve_target(options.target, options.threads).cores


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        result = answer(json.loads(sys.argv[1]))
    print(json.dumps(result))
