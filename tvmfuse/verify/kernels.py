"""Kernel level: each scheduled kernel against its own unscheduled form, on the model's real data.

The scheduled kernel is the one in the artifact: its inputs and its output are copied while the
artifact runs. Only kernels that no measured record stands behind are checked (candidates are
checked before they enter a log), the cheapest first, within a budget of time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import tvm

import tvmfuse.schedules  # noqa: F401  its rules of lowering hold here as in the build
from tvmfuse.tuning.task import as_main, count_flops
from tvmfuse.verify.compare import TINY, as_tensor, copies
from tvmfuse.verify.report import Comparison
from tvmfuse.verify.tolerances import tolerance

# What an unscheduled loop nest does at least, measured 2026-12-01 on one core: 0.3 to 1 GFLOP/s.
_NAIVE_FLOPS_PER_S = 3e8
_COMPILE_S = 0.1
BUDGET_S = 3.0


@dataclass(frozen=True)
class Scheduled:
    """One distinct kernel of an artifact.

    Parameters
    ----------
    name
        As the manifest's layers name it.
    definition
        Its unscheduled PrimFunc, over the same arguments.
    origin
        ``"log"`` or the template's name.
    rtol
        Bound of the variant, where it rounds more than another order of summation.
    note
        Why the log's record was not used; empty otherwise.
    """

    name: str
    definition: Any
    origin: str
    rtol: float = 0.0
    note: str = ""


def check_kernels(
    model: Any,
    kernels: Sequence[Scheduled],
    inputs: tuple[Any, ...],
    target: Any,
    budget_s: float = BUDGET_S,
    suspects: frozenset[str] = frozenset(),
) -> dict[str, Comparison]:
    """Check kernels until the budget is spent.

    Parameters
    ----------
    model
        A :class:`tvmfuse.runtime.LoadedModel`.
    kernels
        Those of its artifact.
    inputs
        Arguments of the model.
    target
        Of the artifact: unscheduled kernels are compiled for it too.
    budget_s
        Seconds; infinity checks all, those with a record too.
    suspects
        Names of kernels that are checked whatever it costs.

    Returns
    -------
    dict
        One :class:`Comparison` for each kernel that failed or is a suspect, and one named
        ``"all"``.
    """
    wanted, left = _within(kernels, budget_s, suspects)
    captured = _capture(model, {k.name for k in wanted}, inputs)
    deadline = time.perf_counter() + budget_s
    found: dict[str, Comparison] = {}
    checked = 0
    errors = [0.0]
    for kernel in wanted:
        late = time.perf_counter() > deadline and kernel.name not in suspects
        if kernel.name not in captured or late:
            left += 1
            continue
        one = check_kernel(kernel, captured.pop(kernel.name), target)
        checked += 1
        errors.append(one.max_rel_err)
        if not one.passed or kernel.name in suspects:
            found[kernel.name] = one
    notes = [k.note for k in kernels if k.note]
    if left:
        notes.append(f"{left} kernels are not checked: measured ones, or over {budget_s:g} s")
    found["all"] = Comparison(
        True, max_rel_err=max(errors), checked=checked, skipped=left, note="; ".join(notes)
    )
    return found


def _within(
    kernels: Sequence[Scheduled], budget_s: float, suspects: frozenset[str]
) -> tuple[list[Scheduled], int]:
    """Suspects, then the kernels that the budget is for, the cheapest first; how many stay out."""
    taken = [k for k in kernels if k.name in suspects]
    everything = budget_s == float("inf")
    new = [k for k in kernels if k.name not in suspects and (everything or k.origin != "log")]
    costs = {k.name: _seconds(k) for k in new}
    spent = 0.0
    for kernel in sorted(new, key=lambda k: costs[k.name]):
        spent += costs[kernel.name]
        if spent > budget_s:
            break
        taken.append(kernel)
    return taken, len(kernels) - len(taken)


def _seconds(kernel: Scheduled) -> float:
    """What checking costs: compiling, and one run of the plain loops."""
    return _COMPILE_S + count_flops(as_main(kernel.definition)) / _NAIVE_FLOPS_PER_S


def _capture(model: Any, names: set[str], inputs: tuple[Any, ...]) -> dict[str, list[torch.Tensor]]:
    """Copies of all arguments of the first call of each kernel."""
    found: dict[str, list[torch.Tensor]] = {}

    def see(_: int, name: str, tensors: Any) -> None:
        if name in names and name not in found:
            found[name] = [as_tensor(t).clone() for t in tensors]

    if names:
        model.watch(copies(inputs), see)
    return found


def check_kernel(kernel: Scheduled, arguments: list[torch.Tensor], target: Any) -> Comparison:
    """Run the unscheduled kernel on what the scheduled one was given."""
    *given, got = arguments
    call = _compiled(kernel.definition, target)
    want = torch.empty_like(got)
    call(*(tvm.runtime.from_dlpack(t) for t in (*given, want)))
    allowed = max(tolerance("kernel", got.dtype), kernel.rtol) if got.is_floating_point() else 0.0
    if not got.is_floating_point():
        wrong = int((got != want).sum())
        said = f"kernel {kernel.name} ({kernel.origin}): {wrong} of {got.numel()} values differ"
        return Comparison(not wrong, reason=said if wrong else "")
    both = got.isfinite() & want.isfinite()
    lost = int((got.isfinite() != want.isfinite()).sum())
    scale = float(want[both].abs().max()) if bool(both.any()) else 0.0
    error = float((got[both].double() - want[both].double()).abs().max()) if scale else 0.0
    passed = error <= allowed * scale + TINY and not lost
    said = (
        f"kernel {kernel.name}, scheduled by {kernel.origin}, differs from its own unscheduled "
        f"form: error {error:.3g} at magnitude {scale:.3g} exceeds {allowed:g}"
        + (f", {lost} values are finite on one side only" if lost else "")
    )
    relative = error / scale if scale > TINY else 0.0
    return Comparison(passed, error, relative, tolerance=allowed, reason="" if passed else said)


def _compiled(definition: Any, target: Any) -> Callable[..., Any]:
    main: Callable[..., Any] = tvm.compile(as_main(definition), target=target)["main"]
    return main
