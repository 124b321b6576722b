"""Build a model in parts: compile those that can be, hand PyTorch the others, verify the whole."""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tvmfuse import __version__
from tvmfuse.config import CompileOptions
from tvmfuse.errors import ArtifactError, ImportModelError, VerificationError
from tvmfuse.fallback.manifest import (
    BranchParts,
    ChoicePart,
    Part,
    SegmentedManifest,
    read_segmented,
)
from tvmfuse.fallback.model import SegmentedModel
from tvmfuse.fallback.verify_parts import verify_parts
from tvmfuse.frontend.import_model import import_module
from tvmfuse.frontend.loaded import LoadedReference
from tvmfuse.frontend.segments import Choice, Segment, Split, segments_of
from tvmfuse.hardware import Hardware
from tvmfuse.report.progress import Progress
from tvmfuse.run import Clock, Run
from tvmfuse.runtime.manifest import MANIFEST, REPORT, FileSeal, sha256_of
from tvmfuse.runtime.write import install_artifact
from tvmfuse.verify import load_metric
from tvmfuse.verify.compare import copies

Values = dict[str, Any]

_ROUNDS = 9  # timed calls of every part; the median is reported


class BuildParts:
    """The stages of a model in parts."""

    def __init__(
        self,
        loaded: LoadedReference,
        found: Split,
        hardware: Hardware,
        options: CompileOptions,
        progress: Progress,
        clock: Clock,
    ) -> None:
        self.loaded, self.split = loaded, found
        self.hardware, self.options = hardware, options
        self.progress, self.clock = progress, clock
        self.reports: dict[str, dict[str, Any]] = {}  # of compiled parts, by their path

    def go(self, output: Path) -> dict[str, Any]:
        """Compile the parts beside ``output``, verify the whole, and move it there."""
        output.parent.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(dir=output.parent, prefix=".tvmfuse-") as scratch:
                staged = Path(scratch) / "artifact"
                staged.mkdir()
                report = self._build(staged)
                report["output"] = str(output)
                (staged / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
                install_artifact(staged, output)
        except OSError as error:
            raise ArtifactError(
                f"cannot write the artifact {output}: {error}; free space, or choose another "
                "--output or TMPDIR; nothing was left behind"
            ) from error
        return report

    def _build(self, staged: Path) -> dict[str, Any]:
        values = dict(zip(self.split.inputs, _flat(self.loaded.example_inputs), strict=True))
        parts = self._parts(self.split.segments, values, staged, "")
        manifest = SegmentedManifest(
            self.split.signature, parts, self.split.inputs, self.split.outputs,
            {"torch": torch.__version__, "tvmfuse": __version__},
            self.loaded.provenance,
        )  # fmt: skip
        text = json.dumps(manifest.to_json(), indent=1, ensure_ascii=False) + "\n"
        (staged / MANIFEST).write_text(text, encoding="utf-8")
        model = SegmentedModel(staged, read_segmented(staged), self.hardware.cores, True)
        with self.clock("verify"):
            verified = self._verified(model)
            times = self._times(model)
        return self._report(manifest, verified, times)

    def _parts(
        self, steps: tuple[Segment | Choice, ...], values: Values, staged: Path, folder: str
    ) -> tuple[Part | ChoicePart, ...]:
        """Write the parts of a chain below ``folder``; their results on the example join values."""
        parts: list[Part | ChoicePart] = []
        for number, step in enumerate(steps):
            path = f"{folder}part{number}"
            if isinstance(step, Choice):
                parts.append(self._choice(path, step, values, staged))
                continue
            inputs = tuple(values[name] for name in step.inputs)
            parts.append(self._part(path, step, inputs, staged))
            with torch.no_grad():
                results = step.module(*copies(inputs))
            values.update(zip(step.outputs, results, strict=True))
        return tuple(parts)

    def _choice(self, path: str, choice: Choice, values: Values, staged: Path) -> ChoicePart:
        """All branches, on what the example gives them: the one that it does not take as well."""
        branches, results = [], []
        for name, branch in zip(("true", "false"), choice.branches, strict=False):
            (staged / path / name).mkdir(parents=True)
            inner = {inside: values[outside] for inside, outside in branch.inputs}
            parts = self._parts(branch.steps, inner, staged, f"{path}/{name}/")
            branches.append(BranchParts(parts, branch.inputs, branch.outputs))
            results.append([inner[output] for output in branch.outputs])
        true = choice.predicate is None or bool(values[choice.predicate])
        values.update(zip(choice.outputs, results[0 if true else 1], strict=True))
        return ChoicePart(path, choice.predicate, tuple(branches), choice.outputs)

    def _part(self, path: str, segment: Segment, inputs: tuple[Any, ...], staged: Path) -> Part:
        """Write one part; a compiled one that fails to import after all runs in PyTorch."""
        if segment.compiled and inputs:
            name = f"{self.loaded.name}-{path.replace('/', '-')}"
            try:
                with self.clock("import"):
                    workload = import_module(segment.module, inputs, name)
            except ImportModelError as refusal:
                if self.options.fallback != "eager":
                    raise
                self.progress.warn(f"{path} runs in PyTorch as well: {refusal}")
            else:
                options = self._share(segment)
                run = Run(workload, self.hardware, options, self.progress, self.clock, timed=False)
                self.reports[path] = run.go(staged / path)
                return Part(path, True, segment.inputs, segment.outputs)
        path = f"{path}.pt2"
        with self.clock("import"):
            _save(segment, inputs, staged / path)
        seal = FileSeal((staged / path).stat().st_size, sha256_of(staged / path))
        return Part(path, False, segment.inputs, segment.outputs, seal)

    def _share(self, segment: Segment) -> CompileOptions:
        """The options with this part's share of the tuning budget, by number of operators."""
        total = sum(s.operators for s in segments_of(self.split.segments) if s.compiled)
        share = segment.operators / total
        trials, seconds = self.options.trials, self.options.time_budget_s
        return dataclasses.replace(
            self.options,
            trials=trials and max(1, round(trials * share)),
            time_budget_s=seconds and seconds * share,
            metric=None,  # of the whole
            data=None,
        )

    def _verified(self, model: SegmentedModel) -> dict[str, Any]:
        """The whole against eager; the compiled parts were verified when they were built."""
        metric = load_metric(self.options.metric, self.options.data)
        report = verify_parts(model, self.loaded, self.split, self.options.seed, metric)
        if not report.passed:
            raise VerificationError(
                f"{self.loaded.name} in {len(model.manifest.parts)} parts does not agree with "
                "eager PyTorch; no artifact was written:\n  " + "\n  ".join(report.failures())
            )
        return report.to_json()

    def _times(self, model: SegmentedModel) -> dict[str, Any]:
        """Median milliseconds of the whole, of eager and of every part, in turns."""
        examples = self.loaded.example_inputs
        before = torch.get_num_threads()
        torch.set_num_threads(self.hardware.cores)
        spent: dict[str, list[float]] = {}

        def whole(*inputs: Any) -> Any:
            return self.split.signature.call(model, inputs)

        def timed(name: str, call: Callable[..., Any], inputs: Any) -> Any:
            begin = time.perf_counter()
            result = call(*inputs)
            spent.setdefault(name, []).append((time.perf_counter() - begin) * 1e3)
            return result

        try:
            with torch.no_grad():
                for _ in range(_ROUNDS):
                    timed("eager", self.loaded.module, copies(examples))
                    timed("whole", whole, copies(examples))
                    model.run(_flat(copies(examples)), timed)
        finally:
            torch.set_num_threads(before)
        return {name: statistics.median(times[1:]) for name, times in spent.items()}

    def _report(
        self, manifest: SegmentedManifest, verified: dict[str, Any], times: dict[str, float]
    ) -> dict[str, Any]:
        reports = self.reports.values()
        parts = self._rows(manifest.parts, self.split.segments, times)
        in_torch = (p["ms"] for p in parts if p["runs_in"] == "PyTorch")
        return {
            "model": self.loaded.name,
            "target": self.hardware.name,
            "target_key": self.hardware.key,
            "dtype": self.options.dtype,
            "latency_ms": {"median": times["whole"], "kind": "measured"},
            "baseline_ms": {"eager": times["eager"]},
            "parts": parts,
            "eager_ms": sum(ms for ms in in_torch if ms is not None),
            "kernels": {
                key: sum(r["kernels"][key] for r in reports)
                for key in ("before", "after", "distinct")
            },
            "trials": sum(r["trials"] for r in reports),
            "wall_s": {k: round(v, 3) for k, v in self.clock.seconds.items()},
            "verify": verified,
            "records": {key: sum(r["records"][key] for r in reports) for key in ("hit", "missed")},
            "provenance": self.loaded.provenance,
        }

    def _rows(
        self,
        parts: tuple[Part | ChoicePart, ...],
        steps: tuple[Segment | Choice, ...],
        times: dict[str, float],
    ) -> list[dict[str, Any]]:
        """A row a part, those of branches behind that of their choice.

        Where the example does not take a branch, its parts have no time.
        """
        rows: list[dict[str, Any]] = []
        for part, step in zip(parts, steps, strict=True):
            name = part.path.removesuffix(".pt2").replace("part", "")
            if isinstance(part, ChoicePart):
                assert isinstance(step, Choice)
                rows.append({
                    "part": name, "runs_in": "a choice", "operators": None, "ms": None,
                    "kernels": None, "why": [f"a value chooses a branch: {step.place}"],
                })  # fmt: skip
                for side, branch in zip(part.branches, step.branches, strict=True):
                    rows += self._rows(side.parts, branch.steps, times)
                continue
            assert isinstance(step, Segment)
            report = self.reports.get(part.path)
            ms = times.get(part.path)
            rows.append({
                "part": name,
                "runs_in": "tvmfuse" if part.compiled else "PyTorch",
                "operators": step.operators,
                "ms": None if ms is None else round(ms, 4),
                "kernels": report and report["kernels"]["after"],
                "why": list(step.reasons),
            })  # fmt: skip
        return rows


def _save(segment: Segment, inputs: tuple[Any, ...], path: Path) -> None:
    """Write a part for PyTorch; extents that depend on values stay free."""
    try:
        with torch.no_grad():
            program = torch.export.export(
                segment.module, inputs, dynamic_shapes=_free(segment), strict=False
            )
            torch.export.save(program, path)
    except Exception as error:  # PyTorch raises many kinds
        lines = [line for line in str(error).splitlines() if line.strip()] or ["no message"]
        raise ImportModelError(
            "a part for PyTorch cannot be saved: "
            f"{type(error).__name__}: {lines[0]}; it holds {'; '.join(segment.reasons)}"
        ) from error


def _free(segment: Segment) -> Any:
    """``dynamic_shapes``: automatic where the traced value had a symbol, static elsewhere."""
    auto = torch.export.Dim.AUTO
    found = []
    for node in segment.module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            free = {d: auto for d, e in enumerate(value.shape) if not isinstance(e, int)}
            found.append(free or None)
        else:
            found.append(auto if isinstance(value, torch.SymInt) else None)
    return tuple(found)


def _flat(inputs: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(inputs)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
