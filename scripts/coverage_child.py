"""One process of the operator sweep: answers what becomes of an operator and a type.

Reads lines ``{"operator": NAME, "dtype": NAME, "samples": N}`` and writes one JSON line for each.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from tvmfuse.build import build
from tvmfuse.choose import choose_kernels
from tvmfuse.errors import ImportModelError, UnsupportedOperatorError
from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.planner import make_plan
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import fuse, lower
from tvmfuse.passes.specialize import group_kernels
from tvmfuse.runtime.load import load
from tvmfuse.signature import flatten
from tvmfuse.verify import compare

RIGHT, REFUSED, WRONG, CRASHED = "right", "refused", "wrong", "crashed"
HARDWARE = resolve_target("llvm")


class Calls(torch.nn.Module):
    """Calls of an operator with their constants; tensors are the inputs, one after another."""

    def __init__(self, calls: list[tuple[Callable[..., Any], Any, list[int]]]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """Results of all calls."""
        results, begin = [], 0
        for function, (spec, leaves), places in self.calls:
            filled = list(leaves)
            for place in places:
                filled[place] = tensors[begin]
                begin += 1
            args, kwargs = pytree.tree_unflatten(filled, spec)
            results.append(function(*args, **kwargs))
        return tuple(results)


def samples_of(operator: Any, dtype: torch.dtype, count: int) -> list[tuple[Any, list[Any]]]:
    """Up to ``count`` calls that eager PyTorch can make, each with its tensors."""
    found = []
    torch.manual_seed(0)
    for sample in operator.sample_inputs("cpu", dtype, requires_grad=False):
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        leaves, spec = pytree.tree_flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        tensors = [leaves[i].detach().contiguous() for i in places]
        fixed = [None if i in places else leaf for i, leaf in enumerate(leaves)]
        call = (operator.op, (spec, fixed), places)
        try:
            with torch.no_grad():
                results = Calls([call])(*(t.clone() for t in tensors))
        except Exception:  # eager itself does not take the sample without gradients
            continue
        if not tensors or not any(isinstance(r, torch.Tensor) for r in pytree.tree_leaves(results)):
            continue
        found.append((call, tensors))
        if len(found) == count:
            break
    return found


def outcome(samples: list[tuple[Any, list[Any]]]) -> tuple[str, str]:
    """Import, build, run and compare one module of all the samples."""
    module = Calls([call for call, _ in samples]).eval()
    tensors = tuple(t for _, given in samples for t in given)
    try:
        workload = import_module(module, tensors, "operator")
    except (UnsupportedOperatorError, ImportModelError) as error:
        return REFUSED, str(error)
    with tempfile.TemporaryDirectory() as folder:
        low = lower(workload, HARDWARE)
        fused = fuse(low, make_plan(low, HARDWARE))
        groups = group_kernels(fused.module, HARDWARE)
        choices = choose_kernels(groups, None, HARDWARE)
        build(fused, groups, choices, HARDWARE).save(Path(folder) / "a", {})
        model = load(Path(folder) / "a", threads=HARDWARE.cores)
        got = flatten(workload.signature.output_tree, model(*(t.clone() for t in tensors)))
        with torch.no_grad():
            eager = flatten(workload.signature.output_tree, module(*(t.clone() for t in tensors)))
        result = compare([torch.as_tensor(g) for g in got], eager, eager)
    return (RIGHT, "") if result.passed else (WRONG, result.reason)


def attempt(samples: list[tuple[Any, list[Any]]]) -> tuple[str, str]:
    """:func:`outcome`, with any other exception as a crash."""
    try:
        return outcome(samples)
    except Exception as error:  # any kind: that is what the sweep looks for
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        return CRASHED, f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]


def judge(operator: Any, dtype: torch.dtype, count: int) -> dict[str, Any]:
    """Outcome of each sample: all in one module, and one by one where that is not right."""
    samples = samples_of(operator, dtype, count)
    if not samples:
        return {"samples": 0, "outcomes": {}, "messages": {}}
    word, _ = attempt(samples)
    if word == RIGHT:
        return {"samples": len(samples), "outcomes": {RIGHT: len(samples)}, "messages": {}}
    outcomes: dict[str, int] = {}
    messages: dict[str, str] = {}
    for sample in samples:
        word, message = attempt([sample])
        outcomes[word] = outcomes.get(word, 0) + 1
        if message:
            messages.setdefault(word, message)
    if outcomes == {RIGHT: len(samples)}:  # right alone, not together: that is a fault as well
        return {"samples": len(samples), "outcomes": {CRASHED: 1}, "messages": {CRASHED: _}}
    return {"samples": len(samples), "outcomes": outcomes, "messages": messages}


def find(name: str) -> Any:
    """The operator of the database by its full name, variant included."""
    return next(o for o in op_db if full_name(o) == name)


def full_name(operator: Any) -> str:
    """``name.variant``."""
    variant = operator.variant_test_name
    return f"{operator.name}.{variant}" if variant else operator.name


def serve(lines: Iterator[str]) -> None:
    """Answer every line."""
    answers = sys.stdout
    for line in lines:
        asked = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            result = judge(
                find(asked["operator"]), getattr(torch, asked["dtype"]), asked["samples"]
            )
        print(json.dumps({**asked, **result}), file=answers, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    serve(iter(sys.stdin))
