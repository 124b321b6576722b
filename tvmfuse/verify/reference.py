"""The reference: the user's own module in eager PyTorch, in its type and in float64."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tvmfuse.signature import Signature, flatten
from tvmfuse.verify.compare import copies
from tvmfuse.workload import Workload


def exact_reference(
    workload: Workload,
) -> tuple[Callable[[tuple[Any, ...]], list[torch.Tensor] | None], str]:
    """Return eager float64 as a function of the inputs, and what to call it.

    It answers None, and is named for why, where the user's module cannot run in float64.
    """
    try:
        module = copy.deepcopy(workload.reference).double()
        with torch.no_grad():
            first = eager(workload.signature, module, _doubled(workload.example_inputs))
    except Exception as error:  # any kind: the module is the user's
        why = (str(error).splitlines() or [""])[0]
        said = f"eager float32, since float64 fails with {type(error).__name__}: {why}"
        return lambda inputs: None, said

    def exact(inputs: tuple[Any, ...]) -> list[torch.Tensor]:
        if inputs is workload.example_inputs:
            return first
        with torch.no_grad():
            return eager(workload.signature, module, _doubled(inputs))

    return exact, "eager float64"


def eager(signature: Signature, module: Any, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    """Flat outputs of a module on copies of ``inputs``."""
    returned = flatten(signature.output_tree, module(*copies(inputs)))
    return [leaf.detach() for leaf in returned]


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
            workload.reference(*copies(workload.example_inputs))
            begin = time.perf_counter()
            while len(times_ms) < 3 or time.perf_counter() - begin < seconds:
                inputs = copies(workload.example_inputs)
                start = time.perf_counter()
                workload.reference(*inputs)
                times_ms.append((time.perf_counter() - start) * 1e3)
    finally:
        torch.set_num_threads(before)
    return statistics.median(times_ms)


def _doubled(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    def leaf(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.double() if floating else value

    return pytree.tree_map(leaf, inputs)
