"""Say what a model consists of, what is fused, what is not, and why; nothing is built."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmfuse.config import CompileOptions
from tvmfuse.database import TuningLog
from tvmfuse.explain.analysis import by_operator, heavy_regions, memory_chains
from tvmfuse.explain.profile import measured_ms
from tvmfuse.explain.why import find_rule, why
from tvmfuse.frontend.fx_graph import fx_operators
from tvmfuse.frontend.import_model import workload_of
from tvmfuse.frontend.models import load_model
from tvmfuse.fusion.feasibility import INTENSITY_MARK, MatrixRow, assess
from tvmfuse.fusion.kernels import KernelGraph
from tvmfuse.fusion.merging import Merges
from tvmfuse.fusion.plan import Plan
from tvmfuse.graph import Graph, Operator, operators
from tvmfuse.hardware import Hardware, resolve_target
from tvmfuse.hardware.limits import Limits, gpu_limits, limits_of
from tvmfuse.passes.name_variables import NameVariables
from tvmfuse.passes.pipeline import lowering
from tvmfuse.run import open_log, rules_of, source_of
from tvmfuse.settle import settle
from tvmfuse.workload import Workload

_MOST_ROWS = 10  # regions and chains that are listed


@dataclass(frozen=True)
class Asked:
    """What ``tvmfuse explain`` is asked for.

    Parameters
    ----------
    graph
        ``"relax"`` (after import), ``"fx"`` (before), or empty: no graph analysis.
    rule
        A rule whose furthest match is wanted; empty: none.
    profile
        A trace of PyTorch's profiler whose times are joined to the graph analysis.
    device
        A GPU with whose limits the matrix is compared in place of the target's; empty: none.
    """

    graph: str = ""
    rule: str = ""
    profile: Path | None = None
    device: str = ""


def explain(options: CompileOptions, asked: Asked) -> dict[str, Any]:
    """Import, lower and plan a model, and say what was found.

    Returns
    -------
    dict
        ``model, target, limits`` and, as asked, ``graph`` (``operators, regions, chains``) and
        ``why``; ``fusion`` (``groups, merged, refused, counts, feasibility,
        verdicts``) unless only the
        graph before import was asked for.

    Raises
    ------
    TvmfuseError
        An option cannot be honoured, or the model cannot be imported.
    """
    hardware = resolve_target(options.target, options.threads)
    rules = rules_of(options)
    if asked.rule:
        find_rule(asked.rule, rules)  # refuses unknown names before the model is loaded
    limits = gpu_limits(asked.device) if asked.device else limits_of(hardware)
    times = measured_ms(asked.profile) if asked.profile else None
    loaded = load_model(**source_of(options))
    answer: dict[str, Any] = {
        "model": loaded.name,
        "target": hardware.name,
        "dtype": options.dtype,
        "limits": _limits_json(limits),
    }
    if asked.graph == "fx":
        found = fx_operators(loaded.module, loaded.example_inputs)
        answer["graph"] = _graph_json(found, limits, times)
        if not asked.rule:
            return answer
    workload = workload_of(loaded, options.computes)
    if asked.graph == "relax" or (times is not None and not asked.graph):
        answer["graph"] = _graph_json(_relax_operators(workload), limits, times)
    lowered, merges = lowering(workload, hardware, rules.merging)
    with _log_of(options, hardware) as log:
        settled = settle(lowered, hardware, rules, log)
    plan = settled.plan
    answer["fusion"] = _fusion_json(plan, merges, limits if asked.device else None)
    answer["fusion"]["verdicts"] = settled.to_json()
    if asked.rule:
        answer["why"] = why(asked.rule, rules, merges, plan, KernelGraph(lowered.module))
    return answer


@contextlib.contextmanager
def _log_of(options: CompileOptions, hardware: Hardware) -> Iterator[TuningLog | None]:
    """The tuning log, whose measured verdicts a compile would obey."""
    if options.no_log:
        yield None
        return
    with open_log(options, hardware) as log:
        yield log


def _relax_operators(workload: Workload) -> list[Operator]:
    named = NameVariables()(workload.module)  # type: ignore[operator]
    return operators(Graph(named))


def _graph_json(
    found: list[Operator], limits: Limits, times: dict[str, float] | None
) -> dict[str, Any]:
    rows = by_operator(found, limits, times)
    regions, chains = heavy_regions(found, limits), memory_chains(found, limits)
    answer: dict[str, Any] = {
        "operators": rows,
        "each": [dataclasses.asdict(o) | {"flops_per_byte": o.intensity} for o in found],
        "regions": regions[:_MOST_ROWS],
        "chains": chains[:_MOST_ROWS],
    }
    if times is not None:
        joined = {row["op"] for row in rows}
        answer["profile_not_joined_ms"] = {k: v for k, v in times.items() if k not in joined}
    return answer


def _fusion_json(plan: Plan, merges: Merges, limits: Limits | None) -> dict[str, Any]:
    """``limits`` of another device than the plan was made for: its groups are assessed anew."""
    counts = Counter(plan.counts()) + merges.counts()
    matrix = list(plan.matrix)
    if limits is not None:
        matrix = [MatrixRow(r.member, r.ops, r.work, assess(r.work, limits)) for r in matrix]
    return {
        "operators": merges.operators,
        "kernels": len(plan.groups),
        "counts": dict(counts),
        "groups": [dataclasses.asdict(g) for g in plan.groups],
        "merged": [
            {"rule": m.rule.name, "category": m.rule.category, "members": list(m.match.members)}
            for m in merges.chosen
        ],
        "refused": [dataclasses.asdict(r) for r in (*merges.refused, *plan.refused)],
        "feasibility": [row.to_json() for row in matrix],
    }


def _limits_json(limits: Limits) -> dict[str, Any]:
    ridges = {dtype: round(limits.ridge(dtype), 2) for dtype in limits.peak_flops}
    return dataclasses.asdict(limits) | {"ridge": ridges, "mark": INTENSITY_MARK}
