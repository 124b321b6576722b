"""One run: the stages from a model to a verified artifact, in order."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tvmfuse.build import Artifact, build
from tvmfuse.choose import Choice, choose_kernels, restricted, rounds_least
from tvmfuse.config import CompileOptions, InputShape, shape_and_type, shipped_log_dir
from tvmfuse.database import TuningLog
from tvmfuse.errors import ArtifactError, DeviceError, VerificationError
from tvmfuse.fusion.plan import Plan
from tvmfuse.fusion.rules.selection import RuleSet, select_rules
from tvmfuse.hardware import Hardware, resolve_target, runnable_here
from tvmfuse.offline import (
    banner,
    check_gpu_options,
    estimated_ms,
    verification_json,
    verify_on_cpu,
)
from tvmfuse.passes.group import PREFIX
from tvmfuse.passes.pipeline import lowering
from tvmfuse.passes.specialize import GroupKernel, kernel_name
from tvmfuse.report.progress import Progress
from tvmfuse.runtime import load
from tvmfuse.runtime.manifest import REPORT, sha256_of
from tvmfuse.runtime.timing import time_artifact
from tvmfuse.runtime.write import install_artifact
from tvmfuse.schedules.variant import AnyVariant
from tvmfuse.settle import Bench, Settled, settle
from tvmfuse.tuning.measure import LocalMeasurer
from tvmfuse.tuning.task import tasks_of, weight_bytes
from tvmfuse.tuning.tuner import Budget, TuneResult
from tvmfuse.tuning.tuner import tune as tune_tasks
from tvmfuse.verify import Scheduled, VerifyReport, eager_ms, load_metric, verify
from tvmfuse.verify.exposure import shows_positions
from tvmfuse.workload import Workload

VERDICTS_SHARE = 0.2  # of the time budget, at most, for measuring groups against their parts


def runnable_target(options: CompileOptions) -> Hardware:
    """The target, if its kernels can run here, or are a GPU's, which may be elsewhere."""
    hardware = resolve_target(options.target, options.threads)
    if hardware.gpu is not None:
        check_gpu_options(options, hardware)
        return hardware
    fits = runnable_here(hardware.features)
    if not fits:
        raise DeviceError(
            f"kernels for {hardware.name} cannot run on this machine ({fits.reason}), so they "
            "could be neither measured nor verified; compile on such a machine, or choose an "
            "older CPU (llvm:CPU) that both have"
        )
    return hardware


def rules_of(options: CompileOptions) -> RuleSet:
    """The rules of fusion that the options leave on; raises OptionError."""
    return select_rules(options.no_rule, options.only, options.rules)


def source_of(options: CompileOptions) -> dict[str, Any]:
    """What names the model and its weights, as arguments of ``load_model``."""
    return {
        "spec": options.model,
        "batch": options.batch,
        "shape": None if options.shape is None else _shape_text(options.shape),
        "weights": options.weights,
        "seed": options.seed,
    }


def rules_identity(options: CompileOptions) -> dict[str, Any]:
    """What says which rules took part; empty for the library as it is."""
    file = options.rules
    return {
        **({"file": file.name, "sha256": sha256_of(file)} if file else {}),
        **({"off": list(options.no_rule)} if options.no_rule else {}),
        **({"only": list(options.only)} if options.only else {}),
    }


def _shape_text(shapes: tuple[InputShape, ...]) -> str:
    said = [(",".join(map(str, shape)), dtype) for shape, dtype in map(shape_and_type, shapes)]
    return ";".join(f"{shape}:{dtype}" if dtype else shape for shape, dtype in said)


def open_log(options: CompileOptions, hardware: Hardware, write: bool = False) -> TuningLog:
    """The log to read, or to write, with the shipped one behind it."""
    assert options.log_dir is not None
    folder = options.log_dir / hardware.key
    shipped = shipped_log_dir()
    other = None if shipped is None else shipped / hardware.key
    if other is not None and other.resolve() == folder.resolve():
        other = None
    return TuningLog.open(folder, hardware, write, shipped=other)


class Clock:
    """Wall-clock seconds of each stage."""

    def __init__(self, progress: Progress) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self._progress.stage(stage)
        begin = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - begin
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent


class Run:
    """The stages behind the import, with what they hand to one another."""

    def __init__(
        self,
        workload: Workload,
        hardware: Hardware,
        options: CompileOptions,
        progress: Progress,
        clock: Clock,
        timed: bool = True,
    ) -> None:
        self.workload, self.hardware, self.options = workload, hardware, options
        self.timed = timed
        self.metric = load_metric(options.metric, options.data)
        self.progress, self.clock = progress, clock
        self.tuned: TuneResult | None = None

    def go(self, output: Path) -> dict[str, Any]:
        """All stages; the artifact is written beside ``output`` and moved there at the end."""
        if self.hardware.gpu is not None:
            self.progress.warn(banner(self.hardware))
        with self._log() as log:
            self._fuse(rules_of(self.options), log)
            choices = self._choices(log)
        for note in dict.fromkeys(c.note for c in choices.values() if c.note):
            self.progress.warn(note)
        try:
            return self._finish(choices, output)
        except OSError as error:
            raise ArtifactError(
                f"cannot write the artifact {output}: {error}; free space, or choose another "
                "--output or TMPDIR; nothing was left behind"
            ) from error

    @contextlib.contextmanager
    def _log(self) -> Iterator[TuningLog | None]:
        """The log, unless it is not to be read."""
        if self.options.no_log:
            yield None
            return
        with open_log(self.options, self.hardware, self._wants_tuning()) as log:
            for note in log.notes:
                self.progress.note(note)
            yield log

    def _fuse(self, rules: RuleSet, log: TuningLog | None) -> None:
        """Lower, plan and fuse; where tuning is asked for, measure what has no verdict yet."""
        with self.clock("fuse"):
            compensated = self.options.accumulation == "compensated"
            self.lowered, self.merges = lowering(
                self.workload, self.hardware, rules.merging, compensated=compensated
            )
            self._take(settle(self.lowered, self.hardware, rules, log))
        if log is not None and self._wants_tuning():
            budget_s = self.options.time_budget_s
            with self.clock("tune"), self._measurer(self.groups) as measurer:
                limit_s = float("inf") if budget_s is None else VERDICTS_SHARE * budget_s
                bench = Bench(measurer, limit_s, self.options.retune, self.progress.warn)
                self._take(settle(self.lowered, self.hardware, rules, log, bench))

    def _take(self, settled: Settled) -> None:
        self.settled, self.plan, self.fused = settled, settled.plan, settled.fused
        self.groups = self._groups(settled.groups)

    def _measurer(self, groups: list[GroupKernel]) -> LocalMeasurer:
        return LocalMeasurer(self.hardware, model_bytes=weight_bytes(groups))

    def _groups(self, groups: list[GroupKernel]) -> list[GroupKernel]:
        """Groups with their variants; without those whose tiles the outputs would show."""
        inexact = [g for g in groups if not all(v.exact for v in g.variants)]
        names = [g.name.removeprefix(PREFIX) for g in inexact]
        if not names or not shows_positions(self.workload, self.lowered, names, self.options.seed):
            return groups
        self.progress.note(
            "an output shows which pixels are NaN or infinite: Winograd convolutions that would "
            "hand these to their neighbours are not used"
        )
        return restricted(groups, lambda _, variant: variant.exact)

    def _finish(self, choices: dict[str, Choice], output: Path) -> dict[str, Any]:
        """Build and verify beside ``output``, then move the artifact there."""
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".tvmfuse-") as scratch:
            staged = Path(scratch) / "artifact"
            artifact, verified = self._verified(choices, staged)
            with self.clock("verify"):
                times = self._times(artifact, staged) if self.timed else {}
            report = self._report(artifact, choices, verified) | times
            report["output"] = str(output)
            (staged / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            install_artifact(staged, output)
        return report

    def _choices(self, log: TuningLog | None) -> dict[str, Choice]:
        """Tune if asked to, then take the best of log and templates for every kernel."""
        if log is not None and self._wants_tuning():
            with self.clock("tune"):
                self.tuned = self._tune(log)
        return choose_kernels(self.groups, log, self.hardware)

    def _wants_tuning(self) -> bool:
        o = self.options
        return o.time_budget_s is not None or (o.trials is not None and o.trials > 0)

    def _tune(self, log: TuningLog) -> TuneResult:
        result = tune_tasks(
            tasks_of(self.groups, self.plan),
            log,
            self._measurer(self.groups),
            self.hardware,
            Budget(self.options.trials, self.options.time_budget_s),
            seed=self.options.seed,
            progress=self.progress,
            retune=self.options.retune,
        )
        if result.interrupted:
            self.progress.note(
                "tuning was interrupted; building with what is in the log, and the same command "
                "goes on from there"
            )
        return result

    def _verified(self, choices: dict[str, Choice], staged: Path) -> tuple[Artifact, VerifyReport]:
        """Build, write and verify; variants that round more are dropped where that is needed."""
        artifact, report = self._attempt(choices, staged)
        while not report.passed:
            closer, said = self._closer(choices, report)
            if not closer:
                raise VerificationError(
                    f"{self.workload.name} for {self.hardware.name} does not agree with eager "
                    "PyTorch; no artifact was written:\n  " + "\n  ".join(report.failures())
                )
            self.progress.warn(f"{'; '.join(report.failures())}: building again with {said}")
            choices.update(closer)
            shutil.rmtree(staged)
            artifact, report = self._attempt(choices, staged)
        return artifact, report

    def _closer(
        self, choices: dict[str, Choice], report: VerifyReport
    ) -> tuple[dict[str, Choice], str]:
        """Choices that round less, and what to call them; none are left when both are empty.

        Where only layers are off, their kernels get the next variant that rounds less; otherwise
        all kernels get those that round least.
        """
        off = {id(g.kernels) for g in self.groups if kernel_name(g.name) in report.diverging}
        rounding = {g.name: g.variants[choices[g.name].variant] for g in self.groups if g.variants}
        layers_only = all(c.passed for c in report.levels["model"].values())

        def less(group: GroupKernel, variant: AnyVariant) -> bool:
            return variant.rtol < rounding[group.name].rtol

        if layers_only and off:
            chosen = [g for g in self.groups if id(g.kernels) in off and g.variants]
            better = self._chosen_again(chosen, less)
            if better:
                return better, f"variants that round less for {len(off)} kernels"
        rough = [g for g in self.groups if g.variants and not rounds_least(g, rounding[g.name])]
        return self._chosen_again(rough, rounds_least), "direct convolutions"

    def _chosen_again(
        self, groups: list[GroupKernel], keep: Callable[[GroupKernel, AnyVariant], bool]
    ) -> dict[str, Choice]:
        """New choices for those groups that have a variant to keep."""
        pairs = [
            (g, k) for g, k in zip(groups, restricted(groups, keep), strict=True) if k.variants
        ]
        kept = [k for _, k in pairs]
        if self.options.no_log:
            again = choose_kernels(kept, None, self.hardware)
        else:
            with open_log(self.options, self.hardware) as log:
                again = choose_kernels(kept, log, self.hardware)
        return {
            g.name: dataclasses.replace(
                again[g.name], variant=g.variants.index(k.variants[again[g.name].variant])
            )
            for g, k in pairs
        }

    def _attempt(self, choices: dict[str, Choice], staged: Path) -> tuple[Artifact, VerifyReport]:
        with self.clock("build"):
            artifact = build(self.fused, self.groups, choices, self.hardware)
            artifact.save(staged, self._provenance(choices))
        with self.clock("verify"):
            if self.hardware.gpu is not None:
                beside, seed = staged.with_name("on-cpu"), self.options.seed
                arguments = (self.fused, self.groups, choices, beside, seed, self.metric)
                return artifact, verify_on_cpu(*arguments)
            model = load(staged, threads=self.hardware.cores)
            kernels = scheduled_kernels(self.groups, choices, artifact)
            target = self.hardware.target_json
            return artifact, verify(
                model, self.workload, self.options.seed, kernels, target, metric=self.metric
            )

    def _provenance(self, choices: dict[str, Choice]) -> dict[str, Any]:
        origins = [c.origin for c in choices.values()]
        return {
            **self.workload.provenance,
            "rules": rules_identity(self.options),
            "kernels_from_log": origins.count("log"),
            "kernels_from_templates": len(origins) - origins.count("log"),
        }

    def _times(self, artifact: Artifact, staged: Path) -> dict[str, Any]:
        """Latency and memory of the artifact in a process of its own, and eager's latency."""
        if self.hardware.gpu is not None:
            return {"latency_ms": estimated_ms(self.groups, artifact, self.hardware.gpu)}
        if self.options.measure == "none":
            return {}
        timing = time_artifact(staged, self.hardware.cores)
        return {
            "latency_ms": {
                **{k: timing[k] for k in ("median", "p10", "p90")},
                "kind": "measured",
            },
            "baseline_ms": {"eager": eager_ms(self.workload, self.hardware.cores)},
            "peak_memory_bytes": timing["peak_memory_bytes"],
        }

    def _report(
        self,
        artifact: Artifact,
        choices: dict[str, Choice],
        verified: VerifyReport,
    ) -> dict[str, Any]:
        unwritten = {f"{PREFIX}{name}" for name in self.plan.unwritten}
        called = (c for name, c in choices.items() if name not in unwritten)
        distinct = {id(c.kernel): c for c in called}.values()
        hit = sum(c.origin == "log" for c in distinct)
        return {
            "model": self.workload.name,
            "target": self.hardware.name,
            "target_key": self.hardware.key,
            "dtype": self.options.dtype,
            "kernels": {
                "before": self.merges.operators,
                "after": artifact.calls,
                "distinct": artifact.kernels,
            },
            "fusion": {
                c: n + self.merges.counts().get(c, 0) for c, n in self.plan.counts().items()
            },
            "intermediates": artifact.footprint.to_json(),
            "feasibility": [row.to_json() for row in self.plan.matrix],
            "work": work_of_kernels(self.plan),
            "verdicts": self.settled.to_json(),
            "not_settled": [{"group": g, "reason": why} for g, why in self.settled.open],
            "refused": [dataclasses.asdict(r) for r in (*self.merges.refused, *self.plan.refused)],
            "trials": self.tuned.trials if self.tuned else 0,
            "trials_per_s": self.tuned.trials_per_s if self.tuned else 0.0,
            "failures": self.tuned.failures if self.tuned else {},
            "wall_s": {k: round(v, 3) for k, v in self.clock.seconds.items()},
            "verify": (
                verified.to_json()
                if self.hardware.gpu is None
                else verification_json(verified, self.hardware)
            ),
            **({"gpu": artifact.gpu_json()} if self.hardware.gpu is not None else {}),
            "records": {"hit": hit, "missed": len(distinct) - hit},
            "provenance": self.workload.provenance,
        }


def work_of_kernels(plan: Plan) -> dict[str, dict[str, Any]]:
    """What the kernel of each group computes and moves, by the kernel's name."""
    return {
        kernel_name(f"{PREFIX}{group.members[-1]}"): {
            "ops": list(group.ops),
            "dtype": group.work.dtype,
            "flops": group.work.flops + group.work.recomputed,
            "bytes": group.work.read_bytes + group.work.write_bytes,
        }
        for group in plan.groups
        if group.work is not None and group.members[-1] not in plan.unwritten
    }


def scheduled_kernels(
    groups: list[GroupKernel], choices: dict[str, Choice], artifact: Artifact
) -> list[Scheduled]:
    """The artifact's distinct kernels with their definitions, as verification takes them."""
    named = {kernel for kernel, _ in artifact.layers}
    found = []
    for group in groups:
        name, choice = kernel_name(group.name), choices[group.name]
        if name in named:
            rtol = group.variants[choice.variant].rtol if group.variants else 0.0
            definition = group.kernels[choice.variant]
            found.append(Scheduled(name, definition, choice.origin, rtol, choice.note))
    return found
