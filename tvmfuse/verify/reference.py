"""The reference: the user's own module in eager PyTorch, in its type and in float64."""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tvmfuse.frontend.qdq import QUANTIZE, quantises
from tvmfuse.frontend.states import restore
from tvmfuse.precision.mixed import LARGEST
from tvmfuse.signature import OWN_TYPES, flatten
from tvmfuse.verify.compare import copies
from tvmfuse.verify.rounding import MOVED, moved
from tvmfuse.workload import Workload

# Relative to the largest magnitude; the largest error of a kernel seen, rounded up (6e-7:
# `tvmfuse.verify.tolerances`).
ORDER_OF_SUMS = 1e-6
_STEPS = 4  # runs with moved steps


def exact_reference(
    workload: Workload,
) -> tuple[Callable[[tuple[Any, ...]], list[torch.Tensor] | None], str]:
    """Return eager float64 as a function of the inputs, and what to call it.

    It answers None, and is named for why, where the user's module cannot run in float64.
    """
    try:
        module = copy.deepcopy(workload.reference).double()
        with torch.no_grad():
            first = eager(workload, _doubled(workload.example_inputs), module)
    except Exception as error:  # any kind: the module is the user's
        why = (str(error).splitlines() or [""])[0]
        said = f"eager float32, since float64 fails with {type(error).__name__}: {why}"
        return lambda inputs: None, said

    def exact(inputs: tuple[Any, ...]) -> list[torch.Tensor]:
        if inputs is workload.example_inputs:
            return first
        with torch.no_grad():
            return eager(workload, _doubled(inputs), module)

    return exact, "eager float64"


def eager(
    workload: Workload, inputs: tuple[Any, ...], module: torch.nn.Module | None = None
) -> list[torch.Tensor]:
    """Flat outputs on copies of ``inputs``, from the state at import, which stays.

    ``module`` is the reference or a copy of it in another type.
    """
    module = workload.reference if module is None else module
    restore(module, workload.states)
    try:
        returned = flatten(workload.signature.output_tree, module(*copies(inputs)))
        # Outputs may be the buffers themselves.
        return [leaf.detach().clone() if workload.states else leaf.detach() for leaf in returned]
    finally:
        restore(module, workload.states)


def in_halves(workload: Workload, inputs: tuple[Any, ...]) -> list[torch.Tensor] | None:
    """Flat outputs of eager under PyTorch's autocast to the half that the compiled model takes.

    It says what halves cost this model on these inputs, whoever computes with them. None where the
    compiled model takes no halves, or the user's module does not run so.
    """
    if workload.signature.computes == OWN_TYPES:
        return None
    dtype = getattr(torch, workload.signature.computes)
    with torch.no_grad(), contextlib.suppress(Exception), torch.autocast("cpu", dtype):
        return [v.float() if v.is_floating_point() else v for v in eager(workload, inputs)]
    return None


def leaves_range(workload: Workload, inputs: tuple[Any, ...], plain: list[torch.Tensor]) -> bool:
    """Whether inputs, or what eager makes of them in halves, are too large for the half.

    ``plain`` is what eager gives in the model's own type.
    """
    computes = workload.signature.computes
    if computes == OWN_TYPES:
        return False
    for value in pytree.tree_leaves(inputs):
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
            finite = value[value.isfinite()]
            if finite.numel() and float(finite.abs().max()) > LARGEST[computes]:
                return True
    halves = in_halves(workload, inputs)
    return halves is not None and any(
        bool((p.isfinite() & ~h.isfinite()).any()) for p, h in zip(plain, halves, strict=True)
    )


def other_orders(workload: Workload, inputs: tuple[Any, ...]) -> list[list[torch.Tensor]]:
    """Flat outputs of eager where it sums in other orders: without oneDNN, and channels last.

    All are eager PyTorch in the same type, and each is as right as the other. A deep network with
    drawn weights can be so badly conditioned that they differ by more than a tolerance; how far
    they are from float64 is what rounding alone does to this model on these inputs. An order in
    which the user's module cannot run gives nothing. Where the compiled model takes halves, eager
    does so in one of them.
    """
    halves = in_halves(workload, inputs)
    found = [] if halves is None else [halves]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the switch speaks of TF32 on other devices
        with contextlib.suppress(Exception), torch.backends.mkldnn.flags(enabled=False):
            found.append(eager(workload, inputs))
        with contextlib.suppress(Exception):
            module = copy.deepcopy(workload.reference).to(memory_format=torch.channels_last)
            found.append(eager(workload, _channels_last(inputs), module))
    return found


def moved_inputs(workload: Workload, inputs: tuple[Any, ...]) -> list[list[torch.Tensor]]:
    """Flat outputs of eager where the last digits of the inputs are moved, several times.

    The three orders of :func:`other_orders` can agree by chance where any other one does not: of a
    RegNet with drawn weights they are 0.2 % off float64, and 29 % to 49 % from most inputs beside.
    """
    generator = torch.Generator().manual_seed(0)
    floats = [isinstance(v, torch.Tensor) and v.is_floating_point()
              for v in pytree.tree_leaves(inputs)]  # fmt: skip
    found = []
    with torch.no_grad():
        for _ in range(MOVED if any(floats) else 0):
            beside = pytree.tree_map(
                lambda v: moved(v, generator) if isinstance(v, torch.Tensor) else v, inputs
            )
            with contextlib.suppress(Exception):  # the user's module may refuse them
                found.append(eager(workload, beside))
    return found


class _MovedSteps(TorchDispatchMode):
    """Moves what is quantised by what another order of summation does to it."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.partition("::")[2] in QUANTIZE and args[0].numel():
            x = args[0]
            noise = torch.rand(x.shape, generator=self._generator, dtype=x.dtype) * 2 - 1
            largest = x.abs().nan_to_num(0.0, 0.0, 0.0).max()
            args = (x + noise * (ORDER_OF_SUMS * largest), *args[1:])
        return func(*args, **(kwargs or {}))


def moved_steps(workload: Workload, inputs: tuple[Any, ...]) -> list[list[torch.Tensor]]:
    """Flat outputs of eager where what it quantises is a little off; none for other models.

    A value in the middle of two integers becomes one or the other by its last digit, and a deep
    network carries a whole step to its outputs. Inputs whose last digits are moved do not show it:
    the first quantisation takes them back.
    """
    if workload.program is None or not quantises(workload.program):
        return []
    generator = torch.Generator().manual_seed(0)
    found = []
    with torch.no_grad():
        for _ in range(_STEPS):
            with contextlib.suppress(Exception), _MovedSteps(generator):
                found.append(eager(workload, inputs))
    return found


def eager_sequence(
    workload: Workload, calls: list[tuple[Any, ...]]
) -> tuple[list[list[torch.Tensor]], list[torch.Tensor]]:
    """Outputs of several calls one after another from the state at import, and the last state."""
    module = workload.reference
    restore(module, workload.states)
    try:
        outputs = []
        for inputs in calls:
            returned = flatten(workload.signature.output_tree, module(*copies(inputs)))
            outputs.append([leaf.detach().clone() for leaf in returned])
        return outputs, [module.get_buffer(s.name).detach().clone() for s in workload.states]
    finally:
        restore(module, workload.states)


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
        restore(workload.reference, workload.states)
    return statistics.median(times_ms)


def _doubled(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    def leaf(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.double() if floating else value

    return pytree.tree_map(leaf, inputs)


def _channels_last(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    def leaf(value: Any) -> Any:
        image = isinstance(value, torch.Tensor) and value.ndim == 4
        return value.contiguous(memory_format=torch.channels_last) if image else value

    return pytree.tree_map(leaf, inputs)
