"""One model of ``bench.py``, measured on all systems in interleaved rounds."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from bench_peers import ADAPTERS, Task, read_arrays
from bench_process import SystemProcess, busy_cpu_s
from bench_table import DISTURBED_ABOVE, WRONG_ABOVE, compare, summarize

from tvmfuse.config import CompileOptions

TURN_S = 1.0  # a turn is cut to about this long …
SLOW_ROUNDS = 3  # … and a system whose single call is longer has only so many turns
WARMUP_CALLS = 2
RUN_TIMEOUT_S = 600.0
TARGET = "llvm"  # the peers run on the CPU, so tvmfuse does too


def round_order(names: list[str], rounds: int, seed: int) -> list[list[str]]:
    """Order of the systems in each round: every system once a round, shuffled by ``seed``."""
    shuffler = random.Random(seed)
    return [shuffler.sample(names, len(names)) for _ in range(rounds)]


class Turn(NamedTuple):
    """What one system does in its turn, and in how many rounds it has one."""

    calls: int
    warmup: int
    rounds: int


def plan_turn(call_s: float, calls: int, rounds: int) -> Turn:
    """At most ``calls`` calls in a turn, fewer where they take long, at least one."""
    if call_s > TURN_S:
        return Turn(1, 0, min(rounds, SLOW_ROUNDS))
    return Turn(min(calls, int(TURN_S / call_s)), WARMUP_CALLS, rounds)


def relative_error(answer: list[np.ndarray], reference: list[np.ndarray]) -> float:
    """Largest absolute error over the largest magnitude; infinite where shapes or NaNs differ."""
    if [a.shape for a in answer] != [r.shape for r in reference]:
        return float("inf")
    worst = 0.0
    for got, want in zip(answer, reference, strict=True):
        if want.size == 0:
            continue
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        with np.errstate(invalid="ignore"):  # inf - inf, where both are inf, is not used
            error = np.where(same, 0.0, np.abs(got.astype(np.float64) - want.astype(np.float64)))
        magnitude = np.abs(want[np.isfinite(want)]).max(initial=0.0) or 1.0
        largest = float(error.max()) / float(magnitude)
        worst = max(worst, largest if np.isfinite(largest) else float("inf"))
    return worst


def say(text: str) -> None:
    """Progress goes to stderr; stdout carries the tables only."""
    print(text, file=sys.stderr, flush=True)


class ModelBench:
    """One model measured on all systems."""

    def __init__(self, spec: str, options: argparse.Namespace, scratch: Path) -> None:
        self.options, self.scratch = options, scratch
        self.name = spec
        self.task = Task(
            spec=spec,
            batch=options.batch,
            shape=options.shape,
            weights=options.weights,
            seed=options.seed,
            threads=options.threads,
            folder=str(scratch),
        )
        self.systems: dict[str, SystemProcess] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self.samples: dict[str, dict[int, list[float]]] = {}
        self.others_share: dict[str, dict[str, float]] = {}
        self.turns: dict[str, Turn] = {}
        self.export_s = 0.0

    def measure(self) -> dict[str, Any]:
        """Prepare, load all, run the rounds; returns the entry of this model."""
        prepared = self._once("prepare", task=asdict(self.task), onnx=self._onnx_wanted())
        if "stages_s" not in prepared:
            return {"failed": next(iter(prepared.values()))}
        self.name = prepared["name"]
        self.export_s = sum(prepared["stages_s"].values())
        try:
            for name in self._wanted():
                self._load(name, prepared)
            order = round_order(list(self.systems), self.options.rounds, self.options.seed)
            for index, names in enumerate(order):
                for name in names:
                    self._turn(name, index)
            for name in list(self.systems):
                self._finish(name)
        finally:
            for system in self.systems.values():
                system.close()
        ours = self.results.pop("tvmfuse", {"missing": "not asked for (--no-tvmfuse)"})
        facts = {key: prepared[key] for key in ("provenance", "inputs")}
        return {**compare(ours, self.results), "order": order, **facts}

    def _wanted(self) -> list[str]:
        return ([] if self.options.no_tvmfuse else ["tvmfuse"]) + self.options.peers

    def _onnx_wanted(self) -> bool:
        return any(ADAPTERS[name].needs_onnx for name in self.options.peers)

    def _once(self, operation: str, **request: Any) -> dict[str, Any]:
        """Do one thing in a helper process that ends with it."""
        say(f"{self.name}: {operation}")
        helper = SystemProcess(operation, self.options.threads, self.scratch)
        try:
            return helper.ask(self.options.load_timeout, do=operation, **request)
        finally:
            helper.close()

    def _artifact(self) -> tuple[Task, float | None] | dict[str, str]:
        """Task with tvmfuse's artifact and the seconds its making took, or why there is none."""
        if self.options.artifacts:
            named = CompileOptions(self.task.spec, TARGET).output
            assert named is not None, "CompileOptions always names an output"
            folder = (self.options.artifacts / named.name).resolve()
            if not folder.is_dir():
                return {"missing": f"no artifact {folder.name} in {self.options.artifacts}"}
            return replace(self.task, artifact=str(folder)), recorded_wall_s(folder)
        task = replace(self.task, artifact=str(self.scratch / "artifact"))
        made = self._once("compile", task=asdict(task), options=self._compile_options())
        return (task, sum(made["stages_s"].values())) if "stages_s" in made else made

    def _compile_options(self) -> dict[str, Any]:
        given = self.options
        trials = 0 if given.trials is None and given.time_budget is None else given.trials
        return {
            "target": TARGET,
            "dtype": given.dtype,
            "threads": given.threads,
            "trials": trials,
            "time_budget_s": given.time_budget,
            "log_dir": str(given.log_dir.resolve()) if given.log_dir else None,
        }

    def _load(self, name: str, prepared: dict[str, Any]) -> None:
        """Start a system and check its first answer, or record why there is none."""
        adapter, task, before_s = ADAPTERS[name], self.task, 0.0
        result: dict[str, Any] = {"label": adapter.label}
        self.results[name] = result
        if adapter.needs_onnx and "onnx_error" in prepared:
            said = dict(prepared["onnx_error"])
            if "missing" in said:
                wanted = " ".join(["onnx", "onnxscript", *adapter.packages])
                said["missing"] += f"; install what {adapter.label} needs: pip install {wanted}"
            result.update(said)
            return
        if adapter.needs_onnx:
            before_s = self.export_s
        made_s: float | None = 0.0
        if name == "tvmfuse":
            artifact = self._artifact()
            if isinstance(artifact, dict):
                result.update(artifact)
                return
            task, made_s = artifact
        say(f"{self.name}: load {name}")
        system = SystemProcess(name, self.options.threads, self.scratch)
        self.systems[name] = system  # before asking, so that an interrupt ends it too
        reply = system.ask(self.options.load_timeout, do="load", task=asdict(task), system=name)
        if system.problem:
            say(f"{self.name}: {name}: {reply}")
            result.update(self.systems.pop(name).problem or {})
            return
        answer, reference = (read_arrays(task.path(f"{f}.npz")) for f in (name, "reference"))
        error = relative_error(answer, reference)
        stages_s = {"before": before_s + (made_s or 0.0), **reply["stages_s"]}
        result.update(
            compile_s=None if made_s is None else sum(stages_s.values()),
            stages_s=stages_s,
            max_rel_err=error,
            wrong=not error <= WRONG_ABOVE,
            imports=reply["imports"],
        )
        self.samples[name], self.others_share[name] = {}, {}
        self.turns[name] = plan_turn(reply["call_s"], self.options.calls, self.options.rounds)

    def _turn(self, name: str, index: int) -> None:
        """Give one system its turn in round ``index``."""
        system, turn = self.systems[name], self.turns[name]
        if system.problem or len(self.samples[name]) >= turn.rounds:
            return
        busy_start_s = busy_cpu_s()
        reply = system.ask(RUN_TIMEOUT_S, do="run", calls=turn.calls, warmup=turn.warmup)
        if system.problem:
            say(f"{self.name}: {name}: {reply}")
            self.results[name] = {"label": ADAPTERS[name].label, **reply}
            return
        self.samples[name][index] = reply["samples_ms"]
        busy_end_s = busy_cpu_s()
        if busy_start_s is not None and busy_end_s is not None:
            others_s = max(0.0, busy_end_s - busy_start_s - reply["cpu_s"])
            cores = len(os.sched_getaffinity(0))
            self.others_share[name][str(index)] = others_s / (reply["wall_s"] * cores)

    def _finish(self, name: str) -> None:
        """Take memory and statistics of a system that lived to the end."""
        system = self.systems[name]
        memory = system.ask(RUN_TIMEOUT_S, do="memory")
        if system.problem:
            self.results[name] = {"label": ADAPTERS[name].label, **system.problem}
            return
        self.results[name].update(summarize(self.samples[name]), **memory)
        shares = self.others_share[name]
        self.results[name].update(
            cpu_share_of_others=median(shares.values()) if shares else None,
            cpu_share_of_others_by_round=shares,
            disturbed_rounds=sum(share > DISTURBED_ABOVE for share in shares.values()),
        )


def recorded_wall_s(folder: Path) -> float | None:
    """Seconds that ``report.json`` of a prebuilt artifact says its making took, else None."""
    try:
        wall_s = json.loads((folder / "report.json").read_text())["wall_s"]
        return float(sum(wall_s.values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
