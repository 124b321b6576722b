"""Model level: the outputs against eager, on the example and on edge inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tvmfuse.frontend.qdq import quantises
from tvmfuse.signature import Signature, flatten
from tvmfuse.verify.compare import as_tensor, compare, copies
from tvmfuse.verify.inputs import at_limit, edge_inputs, overflows
from tvmfuse.verify.reference import (
    eager,
    eager_sequence,
    exact_reference,
    leaves_range,
    moved_inputs,
    moved_steps,
    other_orders,
)
from tvmfuse.verify.report import Comparison
from tvmfuse.workload import Workload

_CALLS = 4  # of a sequence, for models with state


def check_model(
    model: Callable[..., Any],
    workload: Workload,
    seed: int,
    only: Collection[str] | None = None,
) -> tuple[dict[str, Comparison], str]:
    """Compare the outputs on every kind of input; also returns what the reference was.

    Parameters
    ----------
    model, workload, seed
        As :func:`tvmfuse.verify.verify` takes them.
    only
        Kinds of input beside the example; None compares all.
    """
    exact, said = exact_reference(workload)
    fresh = from_the_start(model, workload)
    computes = workload.signature.computes
    quantised = workload.program is not None and quantises(workload.program)
    kinds: dict[str, Comparison] = {}
    first: tuple[tuple[Any, ...], list[Any], list[torch.Tensor]] | None = None
    for kind, inputs in edge_inputs(workload.example_inputs, seed).items():
        if only is not None and kind not in only and kind != "example":
            continue
        if quantised and kind == "nan":
            why = "not compared: PyTorch leaves open which integer NaN is quantised to"
            kinds[kind] = Comparison(True, note=why)
            continue
        try:
            with torch.no_grad():
                plain = eager(workload, inputs)
        except Exception as error:  # any kind: the module is the user's
            if kind == "example":
                raise
            why = f"not compared: eager itself raises {type(error).__name__} for it"
            kinds[kind] = Comparison(True, note=why)
            continue
        told = overflows(kind, workload.program) or leaves_range(workload, inputs, plain)
        try:
            returned = flatten(workload.signature.output_tree, fresh(*copies(inputs)))
        except Exception as error:  # an operator that PyTorch runs, on sums that overflowed
            if not told:
                raise
            why = f"not compared: sums overflow, and then it raises {type(error).__name__}"
            kinds[kind] = Comparison(True, note=why)
            continue
        got = [as_tensor(leaf) for leaf in returned]
        if first is None:
            first = (inputs, returned, [leaf.clone() for leaf in got])
        limit = at_limit(kind)
        ideal = exact(inputs) or plain
        kinds[kind] = compare(got, plain, ideal, told, at_limit=limit, computes=computes)
        off = kinds[kind].max_rel_err > kinds[kind].tolerance or quantised
        if not kinds[kind].passed and off:
            kinds[kind] = _by_own_error(got, plain, workload, inputs, exact, told, limit)
        if kinds[kind].finiteness_mismatches:
            kinds[kind] = _by_either_attention(kinds[kind], got, plain, workload, inputs, exact)
    assert first is not None
    kinds["repeated"] = _repeated(fresh, workload.signature, *first)
    if workload.states:
        kinds["sequence"] = _sequence(model, workload, seed)
        model.reset()  # type: ignore[attr-defined]
    return kinds, said


def _by_own_error(
    got: list[torch.Tensor],
    plain: list[torch.Tensor],
    workload: Workload,
    inputs: tuple[Any, ...],
    exact: Callable[[tuple[Any, ...]], list[torch.Tensor] | None],
    told: bool,
    limit: bool,
) -> Comparison:
    """Compare again with what rounding alone does to eager: in other orders, from inputs beside."""
    ideal, steps = exact(inputs) or plain, moved_steps(workload, inputs)
    computes = workload.signature.computes
    if steps:  # they are off by more than any order of summation or input beside
        return compare(got, plain, ideal, told, steps, limit, computes=computes)
    others = other_orders(workload, inputs)
    found = compare(got, plain, ideal, told, others, limit, computes=computes)
    if found.passed or found.max_rel_err <= found.tolerance:
        return found
    beside = moved_inputs(workload, inputs)
    return compare(got, plain, ideal, told, others, limit, beside, computes)


def from_the_start(model: Callable[..., Any], workload: Workload) -> Callable[..., Any]:
    """The model, called from its initial state every time, with all arguments by position."""

    def call(*inputs: Any) -> Any:
        if workload.states:
            model.reset()  # type: ignore[attr-defined]
        return workload.signature.call(model, inputs)

    return call


def _sequence(model: Any, workload: Workload, seed: int) -> Comparison:
    """Several calls, each from the state that the last left: all outputs, and the last state."""
    calls = [edge_inputs(workload.example_inputs, seed + i).get("random") for i in range(_CALLS)]
    inputs = [workload.example_inputs if c is None else c for c in calls]
    with torch.no_grad():
        outputs, states = eager_sequence(workload, inputs)
    model.reset()
    signature = workload.signature
    got = [flatten(signature.output_tree, signature.call(model, copies(i))) for i in inputs]
    want = [leaf for call in outputs for leaf in call] + states
    have = [as_tensor(leaf) for call in got for leaf in call]
    have += [as_tensor(model.states[state.name]) for state in workload.states]
    return compare(have, want, want, computes=workload.signature.computes)


def _by_either_attention(
    first: Comparison,
    got: list[torch.Tensor],
    plain: list[torch.Tensor],
    workload: Workload,
    inputs: tuple[Any, ...],
    exact: Callable[[tuple[Any, ...]], list[torch.Tensor] | None],
) -> Comparison:
    """Compare again where PyTorch's two algorithms for attention differ in what is finite.

    The fused one takes a row whose scores are NaN for a row that is masked out and answers 0, the
    plain one answers NaN; which runs depends on shapes and versions. Each element is compared with
    the one that agrees on whether it is finite, so that a number is still compared with a number.
    """
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        math = eager(workload, inputs)
        math_exact = exact(inputs) or math
    same = all(torch.equal(a.isfinite(), b.isfinite()) for a, b in zip(plain, math, strict=True))
    if same:
        return first
    picked = [
        torch.where(g.isfinite() == p.isfinite(), p, m) if g.shape == p.shape else p
        for g, p, m in zip(got, plain, math, strict=True)
    ]
    ideal = [
        torch.where(g.isfinite() == p.isfinite(), e, m) if g.shape == p.shape else e
        for g, p, e, m in zip(got, plain, exact(inputs) or plain, math_exact, strict=True)
    ]
    again = compare(got, picked, ideal, computes=workload.signature.computes)
    said = "PyTorch's fused and plain attention differ in what is finite; each element agrees with "
    note = "; ".join(n for n in (again.note, said + "one of them") if n)
    return dataclasses.replace(again, note=note) if again.passed else first


def _repeated(
    model: Callable[..., Any],
    signature: Signature,
    inputs: tuple[Any, ...],
    returned: list[Any],
    kept_copies: list[torch.Tensor],
) -> Comparison:
    """Call again: no state may be left from other calls, and no returned buffer be reused."""
    kept = [as_tensor(leaf) for leaf in returned]
    if not all(torch.equal(*_nan_free(a, b)) for a, b in zip(kept, kept_copies, strict=True)):
        return Comparison(False, reason="a later call overwrote an output that was returned")
    leaves = flatten(signature.output_tree, model(*copies(inputs)))
    return compare([as_tensor(leaf) for leaf in leaves], kept_copies, kept_copies)


def _nan_free(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (one.nan_to_num(), other.nan_to_num()) if one.is_floating_point() else (one, other)
