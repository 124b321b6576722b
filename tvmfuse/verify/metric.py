"""Metric level: what the user's task sees, of the compiled model and of eager, on the user's data.

``--metric package.module:function`` names a function that is called as ``function(outputs, data)``
and returns a number: ``outputs`` holds the model's answer to each batch, ``data`` what came with
that batch (labels, say). ``--data`` names the batches: ``package.module:callable`` returns an
iterable of pairs ``(inputs, data)``, or ``FILE.pt`` holds a list of them; ``inputs`` is the tuple
of the model's arguments, or the only one; arguments that the model takes by keyword come last, in
the order of the parameters of its ``forward``.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tvmfuse.errors import OptionError, UnknownNameError, VerificationError
from tvmfuse.frontend.states import restore
from tvmfuse.verify.compare import as_tensor, copies
from tvmfuse.verify.model import from_the_start
from tvmfuse.verify.report import Comparison
from tvmfuse.verify.tolerances import METRIC_TOLERANCE
from tvmfuse.workload import Workload


@dataclass(frozen=True)
class Metric:
    """A function of outputs and data, and the batches that it is taken over."""

    name: str
    function: Callable[[list[Any], list[Any]], Any]
    batches: Sequence[tuple[tuple[Any, ...], Any]]


def load_metric(metric: str | None, data: str | None) -> Metric | None:
    """Read ``--metric`` and ``--data``; None when neither is given.

    Raises
    ------
    OptionError
        Only one of them is given, or one does not name what it should.
    """
    if metric is None and data is None:
        return None
    if metric is None or data is None:
        missing = "--data package.module:callable or FILE.pt" if data is None else "--metric"
        raise OptionError(f"--metric and --data belong together; {missing} is missing")
    function = _named(metric, "--metric")
    return Metric(metric, function, _batches(data))


def check_metric(
    model: Callable[..., Any], workload: Workload, metric: Metric
) -> dict[str, Comparison]:
    """Compare the metric of ``model`` with eager's; it may differ by 0.1 % of eager's value.

    Raises
    ------
    VerificationError
        The metric's function or the reference fails on the data.
    """
    wanted = _taken(_reference(workload), metric, "eager PyTorch")
    got = _taken(from_the_start(model, workload), metric, "the compiled model")
    error = abs(got - wanted)
    limit = METRIC_TOLERANCE * abs(wanted)
    passed = math.isfinite(got) and error <= limit
    told = f"{metric.name} is {got:.6g}, of eager {wanted:.6g}, on {len(metric.batches)} batches"
    reason = "" if passed else f"{told}: more than {METRIC_TOLERANCE:.1%} apart"
    relative = error / abs(wanted) if wanted else error
    return {
        metric.name: Comparison(
            passed, error, relative, tolerance=METRIC_TOLERANCE, reason=reason,
            checked=len(metric.batches), note=told if passed else "",
        )
    }  # fmt: skip


def _reference(workload: Workload) -> Callable[..., Any]:
    """Eager, called from the state at import every time; what it returns is nobody's buffer."""

    def call(*inputs: Any) -> Any:
        restore(workload.reference, workload.states)
        try:
            return copies((workload.reference(*inputs),))[0]
        finally:
            restore(workload.reference, workload.states)

    return call


def _taken(model: Callable[..., Any], metric: Metric, whose: str) -> float:
    try:
        with torch.no_grad():
            outputs = [
                pytree.tree_map(_as_torch, model(*copies(inputs))) for inputs, _ in metric.batches
            ]
        value = float(metric.function(outputs, [data for _, data in metric.batches]))
    except Exception as error:  # the function and the data are the user's
        raise VerificationError(
            f"--metric {metric.name} on the outputs of {whose} failed with "
            f"{type(error).__name__}: {error}"
        ) from error
    if whose.startswith("eager") and not math.isfinite(value):
        raise VerificationError(
            f"--metric {metric.name} is {value} for eager PyTorch: nothing to compare with"
        )
    return value


def _as_torch(leaf: Any) -> Any:
    return as_tensor(leaf) if hasattr(leaf, "__dlpack__") else leaf


def _batches(data: str) -> list[tuple[tuple[Any, ...], Any]]:
    if data.endswith((".pt", ".pth")):
        if not Path(data).is_file():
            raise OptionError(f"--data {data}: no such file")
        try:
            found = torch.load(data, weights_only=True)
        except Exception as error:
            raise OptionError(f"--data {data} cannot be read by torch.load: {error}") from error
    else:
        try:
            found = list(_named(data, "--data")())
        except OptionError:
            raise
        except Exception as error:
            raise OptionError(
                f"--data {data} failed with {type(error).__name__}: {error}"
            ) from error
    batches = []
    for number, pair in enumerate(found):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise OptionError(
                f"--data {data}: batch {number} is a {type(pair).__name__}, not a pair "
                "(inputs, data)"
            )
        inputs, with_it = pair
        batches.append((tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), with_it))
    if not batches:
        raise OptionError(f"--data {data} holds no batch")
    return batches


def _named(spec: str, option: str) -> Any:
    """What ``package.module:name`` names; it can be called."""
    module_name, colon, attribute = spec.rpartition(":")
    if not colon or not module_name:
        raise OptionError(f"{option} {spec} is not package.module:name")
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a console script does not have it, python -m does
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise OptionError(
            f"cannot import {module_name!r} of {option} {spec}: {type(error).__name__}: {error}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            choices = [n for n in vars(found) if not n.startswith("_")]
            raise UnknownNameError(f"name in {module_name}", attribute, choices)
        found = getattr(found, part)
    if not callable(found):
        raise OptionError(f"{option} {spec} is a {type(found).__name__}, which cannot be called")
    return found
