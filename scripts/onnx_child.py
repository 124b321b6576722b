"""One process of the ONNX sweep: answers what becomes of some node tests.

Reads lines ``{"tests": [NAME, …]}`` and writes one JSON line for each: the tests go through
import, build and run together, and in ever smaller parts where they are not all right.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from onnx.backend.test.case.node import collect_testcases

from tvmfuse.build import build
from tvmfuse.choose import choose_kernels
from tvmfuse.errors import ImportModelError
from tvmfuse.frontend.import_model import import_module
from tvmfuse.frontend.onnx import carried
from tvmfuse.frontend.onnx.load import open_inputs
from tvmfuse.frontend.onnx.planner import FixedInputError, module_of
from tvmfuse.frontend.onnx.tensors import to_tensor
from tvmfuse.fusion.planner import make_plan
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import fuse, lower
from tvmfuse.passes.specialize import group_kernels
from tvmfuse.runtime.load import load
from tvmfuse.signature import flatten

RIGHT, REFUSED, WRONG, CRASHED = "right", "refused", "wrong", "crashed"
HARDWARE = resolve_target("llvm")
# Units in the last place that a result of 16 bits may be off; the tests' own 1e-3 is finer.
_ULPS = 2
_ATOL = 1e-6  # sums of another order


class Case(NamedTuple):
    """A node test: the module, its inputs, what is expected, and the inputs made constants."""

    name: str
    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    expected: list[Any]
    rtol: float
    fixed: list[str]


class Together(torch.nn.Module):
    """Some modules, each with its own of the inputs."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(case.module for case in cases)
        self.counts = [len(case.inputs) for case in cases]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs of all parts."""
        results, begin = [], 0
        for part, count in zip(self.parts, self.counts, strict=True):
            results += part(*tensors[begin : begin + count])
            begin += count
        return tuple(results)


@functools.cache
def node_tests() -> dict[str, Any]:
    """The node tests of the ``onnx`` package by name."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        return {test.name: test for test in collect_testcases(None)}


def proto_of(value: Any, name: str) -> onnx.TensorProto:
    """An input as the test holds it; raises ImportModelError for sequences."""
    if isinstance(value, onnx.TensorProto):
        return value
    if value is None or isinstance(value, list):
        raise ImportModelError(f"input {name!r} is a sequence or an optional; only tensors are fed")
    return onnx.numpy_helper.from_array(np.asarray(value), name)


def tensor_of(value: Any, name: str) -> torch.Tensor:
    """:func:`proto_of` as a tensor; raises ImportModelError for texts."""
    return to_tensor(proto_of(value, name))


def prepare(name: str) -> Case:
    """The module of a test; inputs that decide shapes become constants, as they must."""
    test = node_tests()[name]
    values, expected = test.data_sets[0]
    open_inputs(test.model)  # refuses sequences and the element types that PyTorch lacks
    names = [i.name for i in test.model.graph.input]
    given = {n: tensor_of(v, n) for n, v in zip(names, values, strict=False)}
    fixed: dict[str, torch.Tensor] = {}
    while True:
        free = {n: t for n, t in given.items() if n not in fixed}
        try:
            module = module_of(test.model, free, fixed)
            break
        except FixedInputError as error:
            if not error.names - set(fixed):
                raise
            fixed |= {n: given[n] for n in error.names}
    leaves = [leaf for e in expected for leaf in (e if isinstance(e, list) else [e])]
    return Case(name, module, tuple(free.values()), leaves, test.rtol, sorted(fixed))


def compile_and_run(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[Any]:
    """The outputs of the loaded artifact of a module."""
    workload = import_module(module, inputs, "onnx")
    with tempfile.TemporaryDirectory() as folder:
        low = lower(workload, HARDWARE)
        fused = fuse(low, make_plan(low, HARDWARE))
        groups = group_kernels(fused.module, HARDWARE)
        choices = choose_kernels(groups, None, HARDWARE)
        build(fused, groups, choices, HARDWARE).save(Path(folder) / "a", {})
        model = load(Path(folder) / "a", threads=HARDWARE.cores)
        return flatten(workload.signature.output_tree, model(*(t.clone() for t in inputs)))


def difference(case: Case, results: list[Any]) -> str:
    """What is wrong with the outputs of a test; empty if nothing is."""
    for place, (result, expected) in enumerate(zip(results, case.expected, strict=True)):
        proto = proto_of(expected, f"output_{place}")
        got, wanted = torch.as_tensor(result), to_tensor(proto)
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            return (
                f"output {place} is {got.dtype} {tuple(got.shape)}, not {wanted.dtype} "
                f"{tuple(wanted.shape)}"
            )
        if proto.data_type in carried.KINDS and not carried.KINDS[proto.data_type].high:
            got, wanted = (carried.decoded(t, proto.data_type) for t in (got, wanted))
        elif not got.is_floating_point():
            unlike = (got.to(torch.int64) != wanted.to(torch.int64)).sum().item()
            if unlike:
                return f"output {place} differs in {unlike} of {got.numel()} integers"
            continue
        rtol = case.rtol
        if got.is_floating_point():
            rtol = max(rtol, _ULPS * torch.finfo(got.dtype).eps)
        a, b = got.double(), wanted.double()
        if not torch.allclose(a, b, rtol=rtol, atol=_ATOL, equal_nan=True):
            return f"output {place} is off by {(a - b).abs().nan_to_num().max().item():.3g}"
    return ""


def attempt(cases: list[Case]) -> list[tuple[str, str]]:
    """Outcome and message of each case, compiled together."""
    try:
        inputs = tuple(t for case in cases for t in case.inputs)
        results = compile_and_run(Together(cases).eval(), inputs)
        outcomes = []
        for case in cases:
            own, results = results[: len(case.expected)], results[len(case.expected) :]
            reason = difference(case, own)
            outcomes.append((WRONG, reason) if reason else (RIGHT, ""))
        return outcomes
    except ImportModelError as error:
        return [(REFUSED, str(error))] * len(cases)
    except Exception as error:  # any kind: that is what the sweep looks for
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        said = f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]
        return [(CRASHED, said)] * len(cases)


def halved(cases: list[Case]) -> list[tuple[str, str]]:
    """:func:`attempt`, on halves where the cases are not all right together."""
    if not cases:
        return []
    outcomes = attempt(cases)
    if len(cases) == 1 or all(word == RIGHT for word, _ in outcomes):
        return outcomes
    middle = len(cases) // 2
    return halved(cases[:middle]) + halved(cases[middle:])


def judge(names: list[str]) -> list[dict[str, Any]]:
    """Outcome of each test."""
    results, cases = [], []
    for name in names:
        try:
            cases.append(prepare(name))
        except ImportModelError as error:
            results.append({"test": name, "outcome": REFUSED, "message": str(error), "fixed": []})
        except Exception as error:  # a fault of the importer
            said = f"{type(error).__name__}: {error}"[:300]
            results.append({"test": name, "outcome": CRASHED, "message": said, "fixed": []})
    for case, (word, message) in zip(cases, halved(cases), strict=True):
        results.append(
            {"test": case.name, "outcome": word, "message": message, "fixed": case.fixed}
        )
    return results


def serve(lines: Iterator[str]) -> None:
    """Answer every line."""
    answers = sys.stdout
    for line in lines:
        asked = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            results = judge(asked["tests"])
        print(json.dumps({**asked, "results": results}), file=answers, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    serve(iter(sys.stdin))
