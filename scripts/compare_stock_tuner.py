"""Trials a second: our tuner against TVM's LocalBuilder + LocalRunner on the same tasks.

    python scripts/compare_stock_tuner.py --tasks 4 --trials 128 --json FILE

Both sides tune the same unscheduled ResNet-50 convolutions with evolutionary search and an
XGBoost cost model, until they have measured the same number of candidates. The clock runs from
the first candidate's search to the last result. What a process pays once for its imports is
given apart; the stock builder also imports in its workers, batch after batch, and that is part
of its time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# H = W, C, O, window, stride, pad: ResNet-50 at batch 1, the heaviest first.
CONVOLUTIONS = (
    (56, 64, 64, 3, 1, 1),
    (28, 128, 128, 3, 1, 1),
    (14, 256, 1024, 1, 1, 0),
    (56, 256, 512, 1, 2, 0),
    (14, 256, 256, 3, 1, 1),
    (7, 512, 2048, 1, 1, 0),
    (28, 512, 128, 1, 1, 0),
    (224, 3, 64, 7, 2, 3),
)


def main() -> None:
    """Run both sides and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=4, help=f"1 to {len(CONVOLUTIONS)}")
    parser.add_argument("--trials", type=int, default=128, help="candidates for each side")
    parser.add_argument("--side", choices=("both", "ours", "stock"), default="both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    options = parser.parse_args()
    if not 1 <= options.tasks <= len(CONVOLUTIONS):
        parser.error(f"--tasks must be 1 to {len(CONVOLUTIONS)}, got {options.tasks}")
    if options.trials < 2 * options.tasks:
        parser.error(f"--trials must be at least 2 a task, got {options.trials}")
    if options.side == "both":
        # A process a side: neither finds the other's imports, threads or caches.
        report = {side: _in_child(side, options) for side in ("stock", "ours")}
        report["ratio"] = report["ours"]["trials_per_s"] / report["stock"]["trials_per_s"]
    else:
        report = {options.side: {"ours": run_ours, "stock": run_stock}[options.side](options)}
    print(table(report), file=sys.stderr)
    text = json.dumps(report, indent=1)
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)


def _in_child(side: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, __file__, "--side", side, "--json", str(path)]
        for name in ("tasks", "trials", "seed"):
            command += [f"--{name}", str(getattr(options, name))]
        subprocess.run(command, check=True)
        return json.loads(path.read_text(encoding="utf-8"))[side]


def table(report: dict[str, Any]) -> str:
    """Lay the figures out for reading."""
    lines = [
        f"{'':8}{'trials':>8}{'failed':>8}{'seconds':>9}{'per s':>8}{'imports s':>11}  best ms"
    ]
    for side in ("stock", "ours"):
        if side in report:
            r = report[side]
            best = " ".join("-" if b is None else f"{b:.3f}" for b in r["best_ms"])
            lines.append(
                f"{side:8}{r['trials']:8}{r['failed']:8}{r['seconds']:9.1f}"
                f"{r['trials_per_s']:8.2f}{r['import_s']:11.1f}  {best}"
            )
    if "ratio" in report:
        lines.append(f"ours / stock: {report['ratio']:.1f}")
    return "\n".join(lines)


def _convolutions(options: argparse.Namespace) -> tuple[Any, list[tuple[str, Any]]]:
    """Hardware, and name and direct-convolution kernel of each task."""
    from tvmfuse.hardware import resolve_target
    from tvmfuse.schedules.anchor import Conv2d
    from tvmfuse.schedules.cpu.variants import variants

    hardware, kernels = resolve_target("llvm"), []
    for size, c, o, k, stride, pad in CONVOLUTIONS[: options.tasks]:
        anchor = Conv2d(
            1, size, size, c, o, k, k, (stride, stride), (pad,) * 4, (1, 1), 1, "float32"
        )
        direct = next(v for v in variants(anchor, hardware) if v.name == "direct")
        kernels.append((f"conv_{size}_{c}_{o}_{k}x{k}_s{stride}", direct.prim_func()))
    return hardware, kernels


def run_ours(options: argparse.Namespace) -> dict[str, Any]:
    """Tune with tvmfuse into an empty log."""
    start = time.perf_counter()
    from tvmfuse.database import TuningLog
    from tvmfuse.tuning.measure import LocalMeasurer
    from tvmfuse.tuning.task import make_task
    from tvmfuse.tuning.tuner import Budget, tune

    hardware, kernels = _convolutions(options)
    tasks = [make_task(name, func) for name, func in kernels]
    with tempfile.TemporaryDirectory() as folder:
        log = TuningLog.open(Path(folder) / hardware.key, hardware, write=True)
        with log, LocalMeasurer(hardware, seed=options.seed) as measurer:
            measurer.sentinel_s()  # the child's imports
            import_s = time.perf_counter() - start
            budget = Budget(trials=options.trials)
            result = tune(tasks, log, measurer, hardware, budget, seed=options.seed)
    best = [result.best.get(task.key) for task in tasks]
    return {
        "trials": result.trials,
        "failed": sum(result.failures.values()),
        "seconds": result.seconds,
        "trials_per_s": result.trials_per_s,
        "import_s": import_s,
        "best_ms": [None if b is None else b.seconds * 1e3 for b in best],
    }


def run_stock(options: argparse.Namespace) -> dict[str, Any]:
    """Tune with MetaSchedule as it comes: its rules, builder, runner, cost model, scheduler."""
    start = time.perf_counter()
    import tvm
    import tvm.s_tir.tensor_intrin  # every TuneContext imports it
    from tvm.s_tir import meta_schedule as ms

    from tvmfuse.tuning.task import as_main

    hardware, kernels = _convolutions(options)
    target = tvm.target.Target(hardware.target_json)
    import_s = time.perf_counter() - start
    database = ms.database.MemoryDatabase()
    counter = _make_counter()
    per_task = options.trials // options.tasks
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        contexts = [
            ms.TuneContext(
                as_main(func),
                target=target,
                space_generator="post-order-apply",
                search_strategy="evolutionary",
                task_name=name,
                num_threads=hardware.cores,
                rand_state=options.seed + 1,
                logger=logging.getLogger("stock"),
            )
            for name, func in kernels
        ]
        with contextlib.redirect_stdout(sys.stderr):
            ms.tune.tune_tasks(
                tasks=contexts,
                task_weights=[1.0] * len(contexts),
                work_dir=folder,
                max_trials_global=options.trials,
                max_trials_per_task=per_task,
                num_trials_per_iter=min(64, per_task),
                builder="local",
                runner="local",
                database=database,
                measure_callbacks=[counter, ms.measure_callback.AddToDatabase()],
            )
        seconds = time.perf_counter() - start
    records = [database.query_tuning_record(as_main(f), target, "main") for _, f in kernels]
    return {
        "trials": counter.trials,
        "failed": counter.failed,
        "seconds": seconds,
        "trials_per_s": counter.trials / seconds,
        "import_s": import_s,
        "best_ms": [r and min(float(s) for s in r.run_secs) * 1e3 for r in records],
    }


def _make_counter() -> Any:
    """Build the callback; its base class exists only once TVM is imported."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    @derived_object
    class Counter(ms.measure_callback.PyMeasureCallback):
        trials = failed = 0

        def apply(self, scheduler: Any, task: int, *lists: Any) -> None:
            results = lists[-1]
            self.trials += len(results)
            self.failed += sum(r.error_msg is not None for r in results)

    return Counter()


if __name__ == "__main__":
    main()
