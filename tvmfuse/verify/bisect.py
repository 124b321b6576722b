"""Find the pass, the fusion rule or the algorithm that breaks a model.

The model is built with a prefix of everything that may be left out: optional passes in the order of
the pipeline, merging rules, vertical rules, and algorithms that round more than their definition.
Each build is compared with eager on the inputs on which the whole one fails. Of two neighbouring
prefixes the shorter one agrees and the longer one does not: its last step breaks the model (or
brings out a fault of what follows, which works without it).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmfuse.build import build
from tvmfuse.choose import choose_kernels, restricted, rounds_least
from tvmfuse.fusion.planner import make_plan
from tvmfuse.fusion.rules.selection import RuleSet, select_rules
from tvmfuse.hardware import Hardware
from tvmfuse.passes.pipeline import fuse, lowering, optional_passes
from tvmfuse.passes.specialize import group_kernels, kernel_name
from tvmfuse.runtime import load
from tvmfuse.verify.kernels import Scheduled, check_kernels
from tvmfuse.verify.layers import check_layers
from tvmfuse.verify.model import check_model
from tvmfuse.workload import Workload

_LAYERS = "the layers of example"
_INEXACT = "algorithms that round more (Winograd)"


@dataclass(frozen=True)
class Step:
    """What can be left out: ``kind`` is ``"pass"``, ``"rule"`` or ``"algorithm"``."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Culprit:
    """What a bisection found.

    Parameters
    ----------
    broken
        Input kind to the reason why the whole build fails on it; empty where it does not fail.
    step
        The first step with which the build fails; None where nothing fails, or all do.
    detail
        For a reader: what was found, in one sentence or two.
    builds
        How many builds it took.
    """

    broken: dict[str, str]
    step: Step | None
    detail: str
    builds: int

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        step = None if self.step is None else {"kind": self.step.kind, "name": self.step.name}
        return {"broken": self.broken, "culprit": step, "detail": self.detail,
                "builds": self.builds}  # fmt: skip


def bisect(
    workload: Workload,
    hardware: Hardware,
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
    rules: RuleSet | None = None,
) -> Culprit:
    """Find what breaks a model when it is built from the templates.

    Parameters
    ----------
    workload
        The imported model.
    hardware
        Built for, and run on.
    seed
        Of the drawn inputs.
    tell
        Called with a line after each build.
    rules
        Those of the build in question; all of the library when left out.

    Raises
    ------
    TvmfuseError
        A build fails altogether.
    """
    rules = select_rules() if rules is None else rules
    steps = _steps(workload, hardware, rules)
    search = _Search(workload, hardware, rules, seed, tell, steps)
    broken = search.failing(len(steps))
    if not broken:
        return Culprit({}, None, "the model agrees with eager: nothing is broken", search.builds)
    search.kinds = frozenset(broken)
    if search.failing(0):
        return Culprit(broken, None, search.without_steps(), search.builds)
    right, wrong = 0, len(steps)
    while wrong - right > 1:
        middle = (right + wrong) // 2
        if search.failing(middle):
            wrong = middle
        else:
            right = middle
    culprit = steps[right]
    detail = (
        f"with the {right} steps before it the model agrees with eager, with {culprit} it does not"
    )
    return Culprit(broken, culprit, detail, search.builds)


def _steps(workload: Workload, hardware: Hardware, rules: RuleSet) -> list[Step]:
    """All that can be left out of this model's build, in the order in which it is put in."""
    steps = [Step("pass", label) for label in optional_passes(hardware)]
    low, merges = lowering(workload, hardware, rules.merging)
    plan = make_plan(low, hardware, rules.vertical, rules.off, rules.diagonal)
    used = {m.rule.name for m in merges.chosen}
    used |= {name for group in plan.groups for name in group.steps}
    fired = [r.name for r in (*rules.merging, *rules.vertical) if r.name in used]
    fired += [r.name for r in rules.diagonal if r.fired(plan)]
    steps += [Step("rule", name) for name in dict.fromkeys(fired)]
    return [*steps, Step("algorithm", _INEXACT)]


class _Search:
    """Builds with a prefix of the steps."""

    def __init__(
        self,
        workload: Workload,
        hardware: Hardware,
        rules: RuleSet,
        seed: int,
        tell: Callable[[str], None],
        steps: Sequence[Step],
    ) -> None:
        self.workload, self.hardware, self.seed, self.tell = workload, hardware, seed, tell
        self.rules, self.steps = rules, steps
        self.kinds: frozenset[str] | None = None  # all
        self.builds = 0

    def failing(self, count: int) -> dict[str, str]:
        """Input kinds on which the build with the first ``count`` steps fails, and why."""
        with tempfile.TemporaryDirectory(prefix="tvmfuse-bisect-") as folder:
            model, _ = self._build(count, Path(folder) / "artifact")
            compared, _ = check_model(model, self.workload, self.seed, self.kinds)
            if self.workload.program is not None and (self.kinds is None or _LAYERS in self.kinds):
                layers = check_layers(model, self.workload, self.workload.example_inputs)
                compared[_LAYERS] = layers.comparison()
        self.builds += 1
        found = {kind: c.reason for kind, c in compared.items() if not c.passed}
        last = f", up to {self.steps[count - 1]}" if count else ""
        said = f"differs on {', '.join(found)}" if found else "agrees"
        self.tell(f"{count} of {len(self.steps)} steps{last}: {said}")
        return found

    def _build(self, count: int, folder: Path) -> tuple[Any, list[Scheduled]]:
        used = {str(step) for step in self.steps[:count]}
        out = [s.name for s in self.steps[count:] if s.kind == "pass"]
        rules = self.rules
        merging = [r for r in rules.merging if f"rule {r.name}" in used]
        vertical = [r for r in rules.vertical if f"rule {r.name}" in used]
        diagonal = [r for r in rules.diagonal if f"rule {r.name}" in used]
        off = [*rules.off, *(r for r in rules.vertical if r not in vertical)]
        low, _ = lowering(self.workload, self.hardware, merging, out)
        fused = fuse(low, make_plan(low, self.hardware, vertical, off, diagonal))
        groups = group_kernels(fused.module, self.hardware)
        if f"algorithm {_INEXACT}" not in used:
            groups = restricted(groups, rounds_least)
        choices = choose_kernels(groups, None, self.hardware)
        artifact = build(fused, groups, choices, self.hardware)
        artifact.save(folder, {})
        named = {kernel for kernel, _ in artifact.layers}
        kernels = [
            Scheduled(kernel_name(g.name), g.kernels[c.variant], c.origin)
            for g, c in ((g, choices[g.name]) for g in groups)
            if kernel_name(g.name) in named
        ]
        return load(folder, threads=self.hardware.cores), kernels

    def without_steps(self) -> str:
        """Where the fault shows when every step is left out."""
        with tempfile.TemporaryDirectory(prefix="tvmfuse-bisect-") as folder:
            model, kernels = self._build(0, Path(folder) / "artifact")
            inputs, target = self.workload.example_inputs, self.hardware.target_json
            found = check_kernels(model, kernels, inputs, target, float("inf"))
            wrong = [c.reason for c in found.values() if not c.passed]
            if wrong:
                return f"without any optional pass or rule too: {'; '.join(wrong)}"
            said = "every scheduled kernel agrees with its definition"
            if self.workload.program is not None:
                layers = check_layers(model, self.workload, inputs).comparison()
                said += f"; {layers.reason}" if layers.reason else ""
        return (
            "without any optional pass or rule too, so that the import, a required lowering or a "
            f"template is at fault; {said}"
        )
