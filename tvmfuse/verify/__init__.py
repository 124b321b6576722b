"""Verification at three levels: kernels, layers, and the model against eager PyTorch.

The measure is the largest absolute difference to the reference, divided by the reference's largest
magnitude. Where eager gives NaN or infinity, the compiled model must not give a number, nor the
other way round.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from tvmfuse.verify.compare import compare
from tvmfuse.verify.inputs import edge_inputs
from tvmfuse.verify.kernels import BUDGET_S, Scheduled, check_kernels
from tvmfuse.verify.layers import check_layers
from tvmfuse.verify.metric import Metric, check_metric, load_metric
from tvmfuse.verify.model import check_model
from tvmfuse.verify.reference import eager_ms
from tvmfuse.verify.report import Comparison, VerifyReport
from tvmfuse.verify.tolerances import TOLERANCES
from tvmfuse.workload import Workload

__all__ = [
    "TOLERANCES",
    "Comparison",
    "Metric",
    "Scheduled",
    "VerifyReport",
    "compare",
    "eager_ms",
    "edge_inputs",
    "load_metric",
    "verify",
]  # fmt: skip


def verify(
    model: Callable[..., Any],
    workload: Workload,
    seed: int = 0,
    kernels: Sequence[Scheduled] = (),
    target: Any = None,
    budget_s: float = BUDGET_S,
    metric: Metric | None = None,
    only: frozenset[str] | None = None,
) -> VerifyReport:
    """Compare ``model`` with the workload's reference.

    Parameters
    ----------
    model
        Called with the reference's own arguments; returns its output structure, of anything
        that speaks DLPack. Its errors are passed on. The layer level needs a
        :class:`tvmfuse.runtime.LoadedModel`.
    workload
        Gives reference, example inputs, signature and program.
    seed
        Of the drawn inputs.
    kernels
        Definitions of the artifact's kernels, for the kernel level; without them it is left out.
    target
        What unscheduled kernels are compiled for.
    budget_s
        Seconds for the kernel level; infinity checks every kernel.
    metric
        The user's own measure with its data, for the metric level.
    only
        Kinds of input beside the example, at the model level; None for all.

    Returns
    -------
    VerifyReport
        Also when the comparison fails: the caller decides what that means.
    """
    levels: dict[str, dict[str, Comparison]] = {}
    seconds: dict[str, float] = {}
    begin = time.perf_counter()

    def done(level: str, found: dict[str, Comparison]) -> None:
        nonlocal begin
        levels[level] = found
        seconds[level] = time.perf_counter() - begin
        begin = time.perf_counter()

    inputs = workload.example_inputs
    kinds, said = check_model(model, workload, seed, only)
    done("model", kinds)
    suspects: frozenset[str] = frozenset()
    diverging: tuple[str, ...] = ()
    if workload.program is not None and hasattr(model, "watch"):
        layers = check_layers(model, workload, inputs)
        done("layer", {"example": layers.comparison()})
        diverging = layers.diverging
        if layers.first_diverging is not None:
            suspects = frozenset((layers.first_diverging.kernel,))
    if kernels:
        found = check_kernels(model, kernels, inputs, target, budget_s, suspects)
        done("kernel", found)
        levels |= _blame(levels, found, suspects)
    if metric is not None:
        done("metric", check_metric(model, workload, metric))
    return VerifyReport(levels, said, seconds, diverging)


def _blame(
    levels: dict[str, dict[str, Comparison]],
    found: dict[str, Comparison],
    suspects: frozenset[str],
) -> dict[str, dict[str, Comparison]]:
    """Say of the first diverging layer whether its schedule is at fault."""
    if not all(name in found and found[name].passed for name in suspects) or not suspects:
        return {}
    layer = levels["layer"]["example"]
    reason = (
        f"{layer.reason}; its scheduled kernel agrees with the unscheduled one, so its algorithm, "
        "a pass, a rule or the import is at fault"
    )
    return {"layer": {"example": dataclasses.replace(layer, reason=reason)}}
