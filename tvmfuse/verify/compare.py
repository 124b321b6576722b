"""Comparing flat outputs: shapes, types, finiteness, and distance to float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tvmfuse.signature import OWN_TYPES
from tvmfuse.verify.report import Comparison
from tvmfuse.verify.tolerances import tolerance

# How often eager's own error another order of rounding may be off. It decides only where eager
# itself is further from float64 than the tolerance: an input of 80000 + noise in front of a mean
# has lost its digits before any program sees it. Such a line says so in its note.
OWN_ERRORS = 2
# Where that is so, the largest of a million errors is a matter of chance (a sigmoid that tips over
# in one box of a detector): the root mean square decides then, and the largest may be no more than
# this often eager's largest.
_OWN_LARGEST = 10
# Hardware may flush denormals to zero (eager does so after torch.set_flush_denormal): an error
# of one smallest normal number is always allowed.
TINY = float(np.finfo(np.float32).tiny)


def compare(
    got: list[torch.Tensor],
    eager: list[torch.Tensor],
    ideal: list[torch.Tensor],
    overflowing: bool = False,
    others: Sequence[list[torch.Tensor]] = (),
    at_limit: bool = False,
    beside: Sequence[list[torch.Tensor]] = (),
    computes: str = OWN_TYPES,
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
    overflowing
        Whether sums may overflow, so that eager is no reference: what differs is told.
    others
        What eager gives in other orders of rounding (`tvmfuse.verify.reference.other_orders`): its
        own error is the largest of all of them.
    at_limit
        Whether the inputs are of the size of the type's largest number, so that eager may overflow
        on its way to a result that is in range.
    beside
        What eager gives from inputs whose last digits are moved
        (`tvmfuse.verify.reference.moved_inputs`). A step may be between two of them, so that by
        these no error passes whose root mean square is over twice theirs.
    computes
        Of the signature: which half the model's products take, if any.
    """
    if len(got) != len(eager):
        return Comparison(False, reason=f"{len(got)} outputs instead of {len(eager)}")
    each = [
        _compare_one(g, e, i, rest[: len(others)], rest[len(others) :], at_limit, computes)
        for g, e, i, *rest in zip(got, eager, ideal, *others, *beside, strict=True)
    ]
    if not each:
        return Comparison(False, reason="there are no outputs")
    if overflowing and all(g.shape == e.shape for g, e in zip(got, eager, strict=True)):
        differs = "; ".join(c.reason for c in each if c.reason)
        note = "sums overflow, where depends on their order" + (f": {differs}" if differs else "")
        return Comparison(True, tolerance=min(c.tolerance for c in each), note=note)
    return Comparison(
        passed=all(c.passed for c in each),
        max_abs_err=max(c.max_abs_err for c in each),
        max_rel_err=max(c.max_rel_err for c in each),
        eager_rel_err=max(c.eager_rel_err for c in each),
        tolerance=min(c.tolerance for c in each),
        finiteness_mismatches=sum(c.finiteness_mismatches for c in each),
        kind_mismatches=sum(c.kind_mismatches for c in each),
        reason="; ".join(f"output_{i}: {c.reason}" for i, c in enumerate(each) if c.reason),
        note="; ".join(dict.fromkeys(c.note for c in each if c.note)),
    )


def _compare_one(
    got: torch.Tensor,
    eager: torch.Tensor,
    ideal: torch.Tensor,
    others: Sequence[torch.Tensor],
    beside: Sequence[torch.Tensor],
    at_limit: bool,
    computes: str,
) -> Comparison:
    if got.shape != eager.shape or got.dtype != eager.dtype:
        have, want = (f"{t.dtype} {tuple(t.shape)}" for t in (got, eager))
        return Comparison(False, reason=f"is {have} instead of {want}")
    if not eager.is_floating_point():
        return _compare_integers(got, eager, others)
    allowed = tolerance("model", eager.dtype, computes)
    # Where eager overflows on the way (in half precision; at the largest number: its gelu doubles
    # before it halves) and the float64 value is in range, a number is right; the comparison with
    # float64 below decides whether it is the right one.
    rescued = torch.zeros_like(got, dtype=torch.bool)
    if at_limit or eager.dtype in (torch.float16, torch.bfloat16):
        rescued = got.isfinite() & ~eager.isfinite() & ideal.isfinite()
    half_finite = int(((got.isfinite() != eager.isfinite()) & ~rescued).sum())
    half_nan = int((got.isnan() != eager.isnan()).sum()) - _number_or_nan(got, eager)
    plain = got.isfinite() & eager.isfinite() & ideal.isfinite()
    both = plain | rescued
    scale = float(ideal[both].abs().max()) if bool(both.any()) else 0.0
    error = _distance(got[both], ideal[both])
    orders, beside = (
        [o for o in runs if o.shape == ideal.shape and bool(o[plain].isfinite().all())]
        for runs in ([eager, *others], beside)
    )
    own = max(_distance(o[plain], ideal[plain]) for o in orders)
    limit = max(allowed * scale, OWN_ERRORS * own) + TINY
    orders += beside
    own = max(_distance(o[plain], ideal[plain]) for o in orders)
    ill = own > allowed * scale and error <= _OWN_LARGEST * own
    spread = _rms(got[plain], ideal[plain]), max(_rms(o[plain], ideal[plain]) for o in orders)
    if ill and spread[0] <= OWN_ERRORS * spread[1]:
        limit = max(limit, error)
    reasons = []
    if half_finite:
        reasons.append(f"{half_finite} of {got.numel()} values are finite on one side only")
    if error > limit:
        said = f"error {error:.3g} at magnitude {scale:.3g} exceeds {allowed:g}"
        reasons.append(f"{said} and twice the {own:.3g} of eager")
    note = ""
    if error > allowed * scale + TINY and not reasons:
        note = (
            f"over {allowed:g}, where eager itself is off by {own / scale:.2g}; root mean square "
            f"errors {spread[0]:.2g} and {spread[1]:.2g}"
        )
    relative = [distance / scale if scale > TINY else 0.0 for distance in (error, own)]
    return Comparison(
        not reasons, error, relative[0], relative[1], allowed, half_finite, half_nan,
        "; ".join(reasons), note=note,
    )  # fmt: skip


def _compare_integers(
    got: torch.Tensor, eager: torch.Tensor, others: Sequence[torch.Tensor]
) -> Comparison:
    """Equal, or of a quantised result as many steps apart as eager is from itself."""
    wrong = int((got != eager).sum())
    if not wrong:
        return Comparison(True)
    reason = f"{wrong} of {eager.numel()} values differ"
    if eager.dtype in (torch.uint8, torch.int8) and others:
        steps = _distance(got, eager)
        own = max(_distance(o, eager) for o in others)
        if steps <= OWN_ERRORS * own:
            note = f"{reason} by up to {steps:g} steps, eager from itself by {own:g}"
            return Comparison(True, max_abs_err=steps, note=note)
        reason += f", by up to {steps:g} steps, where eager differs from itself by {own:g}"
    return Comparison(False, reason=reason)


def _number_or_nan(got: torch.Tensor, eager: torch.Tensor) -> int:
    """Count NaN against a number: those are finiteness mismatches already."""
    nan_here = got.isnan() & eager.isfinite()
    nan_there = eager.isnan() & got.isfinite()
    return int((nan_here | nan_there).sum())


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0


def _rms(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).square().mean().sqrt()) if one.numel() else 0.0


def copies(inputs: Any) -> Any:
    """Clone the tensors, so that nobody's in-place change reaches the next run."""
    return pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, inputs)


def as_tensor(leaf: Any) -> torch.Tensor:
    """A tensor of any library as one of torch, without a copy where that is possible."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu()
    if isinstance(leaf, np.ndarray):
        if leaf.dtype.name == "bfloat16":
            return torch.from_numpy(leaf.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(leaf)
    return torch.from_dlpack(leaf).cpu()
