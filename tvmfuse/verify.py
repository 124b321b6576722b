"""Verification: the compiled model against eager PyTorch, on plain and on edge inputs.

The measure is the largest absolute difference to eager float64, divided by the output's largest
magnitude. Where eager float32 gives NaN or infinity, the compiled model must not give a number,
nor the other way round.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tvmfuse.signature import Signature, flatten
from tvmfuse.workload import Workload

# Largest error allowed, relative to the output's largest magnitude. Rounding of float32 sums in
# another order gives 1e-6 on deep networks; a wrong weight or a lost bias gives 1e-2 and more.
TOLERANCES: dict[str, float] = {
    "float64": 1e-10,
    "float32": 1e-4,
    "float16": 2e-2,
    "bfloat16": 1e-1,
}

_OWN_ERRORS = 2  # how often eager float32's own error another order of rounding may be off
_LARGE = 1e3
_DENORMAL = 1e-39  # below float32's smallest normal number, 1.2e-38
# Hardware may flush denormals to zero (eager does so after torch.set_flush_denormal): an error
# of one smallest normal number is always allowed.
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Comparison:
    """One input kind: how far the compiled model is from eager.

    Parameters
    ----------
    passed
        Whether every output is within tolerance and of the right shape, type and finiteness.
    max_abs_err, max_rel_err
        Against eager float64, over all outputs; relative to the output's largest magnitude.
    eager_rel_err
        The same for eager float32: what plain rounding costs.
    tolerance
        The allowed relative error.
    finiteness_mismatches
        Elements that are a number on one side only.
    kind_mismatches
        Elements that are NaN on one side and infinite on the other; told, not a failure.
    reason
        Why not passed; empty otherwise.
    """

    passed: bool
    max_abs_err: float = 0.0
    max_rel_err: float = 0.0
    eager_rel_err: float = 0.0
    tolerance: float = 0.0
    finiteness_mismatches: int = 0
    kind_mismatches: int = 0
    reason: str = ""


@dataclass(frozen=True)
class VerifyReport:
    """What verification found.

    Parameters
    ----------
    levels
        Level name to input kind to :class:`Comparison`; the level ``"model"`` always exists.
    reference
        ``"eager float64"``, or why eager float32 had to serve.
    """

    levels: dict[str, dict[str, Comparison]]
    reference: str

    @property
    def passed(self) -> bool:
        """Whether every comparison passed."""
        return all(c.passed for kinds in self.levels.values() for c in kinds.values())

    @property
    def max_abs_err(self) -> float:
        """Largest absolute error at model level."""
        return max(c.max_abs_err for c in self.levels["model"].values())

    @property
    def max_rel_err(self) -> float:
        """Largest relative error at model level."""
        return max(c.max_rel_err for c in self.levels["model"].values())

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``report.json``."""
        return {
            "levels": {
                level: {kind: asdict(comparison) for kind, comparison in kinds.items()}
                for level, kinds in self.levels.items()
            },
            "reference": self.reference,
            "passed": self.passed,
            "max_abs_err": self.max_abs_err,
            "max_rel_err": self.max_rel_err,
        }

    def failures(self) -> list[str]:
        """Return one line for each failed comparison."""
        return [
            f"{level}, {kind} input: {comparison.reason}"
            for level, kinds in self.levels.items()
            for kind, comparison in kinds.items()
            if not comparison.passed
        ]


def verify(model: Callable[..., Any], workload: Workload, seed: int = 0) -> VerifyReport:
    """Compare ``model`` with the workload's reference.

    Parameters
    ----------
    model
        Called with the reference's own arguments; returns its output structure, of anything
        that speaks DLPack. Its errors are passed on.
    workload
        Gives reference, example inputs and signature.
    seed
        Of the drawn inputs.

    Returns
    -------
    VerifyReport
        Also when the comparison fails: the caller decides what that means.
    """
    exact, said = _exact_reference(workload)
    kinds: dict[str, Comparison] = {}
    first: tuple[tuple[Any, ...], list[Any], list[torch.Tensor]] | None = None
    for kind, inputs in edge_inputs(workload.example_inputs, seed).items():
        try:
            with torch.no_grad():
                eager = _eager(workload.signature, workload.reference, inputs)
        except Exception as error:  # any kind: the module is the user's
            if kind == "example":
                raise
            why = f"not compared: eager itself raises {type(error).__name__} for it"
            kinds[kind] = Comparison(True, reason=why)
            continue
        returned = _leaves(workload.signature, model(*_copies(inputs)))
        got = [_as_tensor(leaf) for leaf in returned]
        if first is None:
            first = (inputs, returned, [leaf.clone() for leaf in got])
        ideal = exact(inputs) or eager
        kinds[kind] = compare(got, eager, ideal)
    assert first is not None
    kinds["repeated"] = _repeated(model, workload.signature, *first)
    return VerifyReport({"model": kinds}, said)


def eager_ms(workload: Workload, threads: int, seconds: float = 1.0) -> float:
    """Time the reference in eager PyTorch.

    Parameters
    ----------
    workload
        Gives the reference and its inputs.
    threads
        Threads that PyTorch may use, restored afterwards.
    seconds
        How long to call it, at least three calls after a warm-up.

    Returns
    -------
    float
        Median milliseconds a call.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    times_ms: list[float] = []
    try:
        with torch.no_grad():
            workload.reference(*_copies(workload.example_inputs))
            begin = time.perf_counter()
            while len(times_ms) < 3 or time.perf_counter() - begin < seconds:
                inputs = _copies(workload.example_inputs)
                start = time.perf_counter()
                workload.reference(*inputs)
                times_ms.append((time.perf_counter() - start) * 1e3)
    finally:
        torch.set_num_threads(before)
    return statistics.median(times_ms)


def edge_inputs(example_inputs: tuple[Any, ...], seed: int) -> dict[str, tuple[Any, ...]]:
    """Return the input sets by kind; integer inputs keep the example's values in all of them."""
    # Not the seed itself: example inputs are often drawn from it already.
    generator = torch.Generator().manual_seed(seed + 1)

    def each(change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
        def leaf(value: Any) -> Any:
            floating = isinstance(value, torch.Tensor) and value.is_floating_point()
            return change(value.detach()) if floating else value

        return pytree.tree_map(leaf, example_inputs)

    def drawn(value: torch.Tensor) -> torch.Tensor:
        return torch.randn(value.shape, generator=generator).to(value.dtype)

    kinds = {"example": example_inputs}
    floats = [
        leaf
        for leaf in pytree.tree_leaves(example_inputs)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    if not floats:
        return kinds
    return kinds | {
        "random": each(drawn),
        "zeros": each(torch.zeros_like),
        "ones": each(torch.ones_like),
        "large": each(lambda value: drawn(value) * _LARGE),
        "denormal": each(lambda value: drawn(value) * _DENORMAL),
        "nan": each(lambda value: _poisoned(drawn(value), float("nan"))),
        "inf": each(lambda value: _poisoned(drawn(value), float("inf"))),
    }


def _poisoned(value: torch.Tensor, bad: float) -> torch.Tensor:
    if value.numel():
        value.view(-1)[value.numel() // 2] = bad
    return value


def compare(
    got: list[torch.Tensor], eager: list[torch.Tensor], ideal: list[torch.Tensor]
) -> Comparison:
    """Compare flat outputs.

    Parameters
    ----------
    got
        Of the compiled model.
    eager
        Of the reference: decides shapes, types and where NaN and infinity belong.
    ideal
        Of the reference in float64: decides the numbers.
    """
    if len(got) != len(eager):
        return Comparison(False, reason=f"{len(got)} outputs instead of {len(eager)}")
    each = [_compare_one(*triple) for triple in zip(got, eager, ideal, strict=True)]
    if not each:
        return Comparison(False, reason="there are no outputs")
    return Comparison(
        passed=all(c.passed for c in each),
        max_abs_err=max(c.max_abs_err for c in each),
        max_rel_err=max(c.max_rel_err for c in each),
        eager_rel_err=max(c.eager_rel_err for c in each),
        tolerance=min(c.tolerance for c in each),
        finiteness_mismatches=sum(c.finiteness_mismatches for c in each),
        kind_mismatches=sum(c.kind_mismatches for c in each),
        reason="; ".join(f"output_{i}: {c.reason}" for i, c in enumerate(each) if c.reason),
    )


def _compare_one(got: torch.Tensor, eager: torch.Tensor, ideal: torch.Tensor) -> Comparison:
    if got.shape != eager.shape or got.dtype != eager.dtype:
        have, want = (f"{t.dtype} {tuple(t.shape)}" for t in (got, eager))
        return Comparison(False, reason=f"is {have} instead of {want}")
    if not eager.is_floating_point():
        wrong = int((got != eager).sum())
        reason = f"{wrong} of {eager.numel()} values differ" if wrong else ""
        return Comparison(not wrong, reason=reason)
    tolerance = TOLERANCES[str(eager.dtype).removeprefix("torch.")]
    half_finite = int((got.isfinite() != eager.isfinite()).sum())
    half_nan = int((got.isnan() != eager.isnan()).sum()) - _number_or_nan(got, eager)
    both = got.isfinite() & eager.isfinite() & ideal.isfinite()
    scale = float(ideal[both].abs().max()) if bool(both.any()) else 0.0
    error, own = (_distance(side[both], ideal[both]) for side in (got, eager))
    # Where eager float32 is itself further from float64 than the tolerance (an offset of 80000 in
    # front of a layer norm), no float32 program can be nearer by construction.
    allowed = max(tolerance * scale, _OWN_ERRORS * own) + _TINY
    passed = error <= allowed and not half_finite
    reasons = []
    if half_finite:
        reasons.append(f"{half_finite} of {got.numel()} values are finite on one side only")
    if error > allowed:
        said = f"error {error:.3g} at magnitude {scale:.3g} exceeds {tolerance:g}"
        reasons.append(f"{said} and twice the {own:.3g} of eager float32")
    relative = [distance / scale if scale > _TINY else 0.0 for distance in (error, own)]
    return Comparison(
        passed, error, relative[0], relative[1], tolerance, half_finite, half_nan,
        "; ".join(reasons),
    )  # fmt: skip


def _number_or_nan(got: torch.Tensor, eager: torch.Tensor) -> int:
    """Count NaN against a number: those are finiteness mismatches already."""
    nan_here = got.isnan() & eager.isfinite()
    nan_there = eager.isnan() & got.isfinite()
    return int((nan_here | nan_there).sum())


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0


def _repeated(
    model: Callable[..., Any],
    signature: Signature,
    inputs: tuple[Any, ...],
    returned: list[Any],
    copies: list[torch.Tensor],
) -> Comparison:
    """Call again: no state may be left from other calls, and no returned buffer be reused."""
    kept = [_as_tensor(leaf) for leaf in returned]
    if not all(torch.equal(*_nan_free(a, b)) for a, b in zip(kept, copies, strict=True)):
        return Comparison(False, reason="a later call overwrote an output that was returned")
    again = [_as_tensor(leaf) for leaf in _leaves(signature, model(*_copies(inputs)))]
    return compare(again, copies, copies)


def _nan_free(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (one.nan_to_num(), other.nan_to_num()) if one.is_floating_point() else (one, other)


def _exact_reference(
    workload: Workload,
) -> tuple[Callable[[tuple[Any, ...]], list[torch.Tensor] | None], str]:
    """Return eager float64 as a function of the inputs, and what to call it.

    It answers None, and is named for why, where the user's module cannot run in float64.
    """
    try:
        module = copy.deepcopy(workload.reference).double()
        with torch.no_grad():
            first = _eager(workload.signature, module, _doubled(workload.example_inputs))
    except Exception as error:  # any kind: the module is the user's
        why = (str(error).splitlines() or [""])[0]
        said = f"eager float32, since float64 fails with {type(error).__name__}: {why}"
        return lambda inputs: None, said

    def exact(inputs: tuple[Any, ...]) -> list[torch.Tensor]:
        if inputs is workload.example_inputs:
            return first
        with torch.no_grad():
            return _eager(workload.signature, module, _doubled(inputs))

    return exact, "eager float64"


def _eager(signature: Signature, module: Any, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    return [leaf.detach() for leaf in _leaves(signature, module(*_copies(inputs)))]


def _leaves(signature: Signature, value: Any) -> list[Any]:
    return flatten(signature.output_tree, value)


def _copies(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Clone the tensors, so that nobody's in-place change reaches the next run."""
    return pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, inputs)


def _doubled(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    def leaf(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.double() if floating else value

    return pytree.tree_map(leaf, inputs)


def _as_tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu()
    if isinstance(leaf, np.ndarray):
        return torch.from_numpy(leaf)
    return torch.from_dlpack(leaf).cpu()
