"""Layer level: what every kernel of the artifact writes, against the same value in float64.

The artifact is run once with a look at every kernel's output, the exported program once in float64
with a look at every node. The float64 run goes on from the values that the artifact computed, so
that a layer answers for its own error and not for the rounding of all layers in front of it (of
that, the model level has the sum); behind a layer that diverges it goes on from its own. Where a
layer is off, eager runs it from the same values: one that is no better cannot be computed better in
its type, and is no fault of ours (`tvmfuse.verify.rounding`).

Which node has a kernel's value is known from the names that the passes
hand on (`tvmfuse.workload.Workload.origins`); kernels without such a node (merged operators,
data movement) are counted, not guessed.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tvmfuse.frontend.locate import node_location
from tvmfuse.precision.taps import run_exact
from tvmfuse.signature import flatten
from tvmfuse.verify.compare import OWN_ERRORS, TINY, as_tensor, copies
from tvmfuse.verify.report import Comparison
from tvmfuse.verify.rounding import Rounding
from tvmfuse.verify.tolerances import tolerance
from tvmfuse.workload import Workload

_SAMPLES = 512  # elements that decide which order of axes is meant
_MAX_RANK = 5  # beyond, only the orders that layouts have are tried


@dataclass(frozen=True)
class LayerResult:
    """One kernel's output beside the node's value.

    Parameters
    ----------
    number, kernel
        Which call of which kernel.
    node, place
        The node of the exported program, and where the user's code has it.
    error, scale
        Largest absolute difference, and the largest magnitude of the float64 value.
    worst
        Index, value and wanted value of the element with that difference.
    allowed
        Relative tolerance.
    reason
        Why the layer diverges; empty where it does not.
    own
        Eager's error from the same values, where ``error`` is over the tolerance.
    """

    number: int
    kernel: str
    node: str
    place: str
    error: float
    scale: float
    worst: str
    allowed: float
    reason: str = ""
    own: float = 0.0

    @property
    def ill_conditioned(self) -> bool:
        """Whether the layer is over the tolerance, and eager from the same values as well."""
        return not self.reason and self.own > 0.0


@dataclass(frozen=True)
class LayerReport:
    """All layers in order of execution, and how many kernels no node stands for."""

    results: tuple[LayerResult, ...]
    unmapped: int
    note: str = ""

    @property
    def first_diverging(self) -> LayerResult | None:
        """The first layer that is off; None when none is."""
        return next((r for r in self.results if r.reason), None)

    @property
    def diverging(self) -> tuple[str, ...]:
        """Kernels of all layers that are off, each once."""
        return tuple(dict.fromkeys(r.kernel for r in self.results if r.reason))

    def comparison(self) -> Comparison:
        """The whole level as one line of the verification report."""
        first = self.first_diverging
        relative = [r.error / r.scale for r in self.results if r.scale > TINY]
        return Comparison(
            first is None,
            max((r.error for r in self.results), default=0.0),
            max(relative, default=0.0),
            tolerance=min((r.allowed for r in self.results), default=0.0),
            reason="" if first is None else describe(first),
            checked=len(self.results),
            skipped=self.unmapped,
            note="; ".join(n for n in (self.note, self._ill_conditioned()) if n),
        )

    def _ill_conditioned(self) -> str:
        ill = [r for r in self.results if r.ill_conditioned]
        if not ill:
            return ""
        worst = max(ill, key=lambda r: r.error / max(r.scale, TINY))
        scale = max(worst.scale, TINY)
        return (
            f"ill-conditioned layers over {worst.allowed:g}, where eager from the same values is "
            f"off too: {len(ill)}, the worst {worst.node!r} with {worst.error / scale:.2g} (eager "
            f"{worst.own / scale:.2g})"
        )


def describe(layer: LayerResult) -> str:
    """First diverging layer in one line."""
    return (
        f"first diverging layer: kernel {layer.number} ({layer.kernel}), which computes "
        f"{layer.node!r} at {layer.place}: {layer.reason}"
    )


def check_layers(model: Any, workload: Workload, inputs: tuple[Any, ...]) -> LayerReport:
    """Compare all layers of one run.

    Parameters
    ----------
    model
        A :class:`tvmfuse.runtime.LoadedModel`.
    workload
        With ``program``.
    inputs
        Arguments of the reference.
    """
    layers = model.manifest.layers
    if workload.states:
        model.reset()
    got = _outputs(model, inputs)
    at: dict[str, list[int]] = {}
    for number in got:
        at.setdefault(layers[number][1], []).append(number)
    results: list[LayerResult] = []
    rounded = _narrowest(workload.program, workload.signature.computes)
    leaves = [state.value for state in workload.states]
    leaves += flatten(workload.signature.input_tree, copies(inputs))
    rounding = Rounding(workload.program, leaves)

    def see(node: Any, value: Any) -> Any:
        computed = None
        for number in at.get(node.name, ()):
            if isinstance(value, torch.Tensor):
                one = got.pop(number)
                order = order_of(value, one)
                own = functools.partial(rounding.errors, node, value)
                results.append(
                    _compare(number, layers[number][0], node, one, value, order, rounded, own)
                )
                if order is not None and not results[-1].reason and one.is_floating_point():
                    # With the strides of its own: the program may take views of it.
                    computed = torch.empty_like(value, dtype=node.meta["val"].dtype)
                    computed.copy_(_back(one, value.shape, order))
        if computed is None:
            return None
        rounding.goes_on_from(node, computed)
        return computed.to(value.dtype)

    try:
        run_exact(workload.program, leaves, see)
    except Exception as error:  # an operator without a float64 form, in whatever way
        said = (str(error).splitlines() or [""])[0]
        note = f"float64 stopped with {type(error).__name__}: {said}"
        return LayerReport(_ordered(results), len(layers) - len(results), note)
    return LayerReport(_ordered(results), len(layers) - len(results))


def _narrowest(program: Any, computes: str) -> float:
    """Tolerance of the narrowest type that is rounded to; the float64 run does not."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    types = {v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()}
    return max((tolerance("layer", t, computes) for t in types), default=0.0)


def _ordered(results: list[LayerResult]) -> tuple[LayerResult, ...]:
    return tuple(sorted(results, key=lambda r: r.number))


def _outputs(model: Any, inputs: tuple[Any, ...]) -> dict[int, torch.Tensor]:
    """Copies of what the kernels write that have a node."""
    layers, got = model.manifest.layers, {}

    def see(number: int, _: str, tensors: Any) -> None:
        if layers[number][1]:
            got[number] = as_tensor(tensors[-1]).clone()

    model.watch(copies(inputs), see)
    return got


def place_of(node: Any) -> str:
    """Module path and source line of a node."""
    modules = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    path = modules[-1] if modules and modules[-1] else ""
    where = node_location(node.meta.get("stack_trace"))
    return f"{path} ({where})" if path else where


def _compare(
    number: int,
    kernel: str,
    node: Any,
    got: torch.Tensor,
    value: torch.Tensor,
    order: tuple[int, ...] | None,
    rounded: float,
    own_errors: Callable[[], tuple[float, float]],
) -> LayerResult:
    allowed = max(tolerance("layer", got.dtype), rounded) if got.is_floating_point() else 0.0

    def result(
        error: float, scale: float, worst: str, reason: str, own: float = 0.0
    ) -> LayerResult:
        return LayerResult(
            number, kernel, node.name, place_of(node), error, scale, worst, allowed, reason, own
        )

    if order is None:
        shapes = f"{tuple(got.shape)} for {tuple(value.shape)}"
        return result(0.0, 0.0, "", f"it writes {shapes}")
    if not got.is_floating_point() or not value.is_floating_point():
        return result(0.0, 0.0, "", "")  # may hang on the last digit of floats: the model decides
    want = value.permute(order).reshape(got.shape)
    both = got.isfinite() & want.isfinite()
    scale = float(want[both].abs().max()) if bool(both.any()) else 0.0
    difference = (got.double() - want).abs().masked_fill(~both, 0.0)
    position = int(difference.argmax()) if difference.numel() else 0
    error = float(difference.flatten()[position]) if difference.numel() else 0.0
    lost = int((got.isfinite() != want.isfinite()).sum())
    index = _unravel(position, got.shape)
    worst = _worst(got, want, index) if error else ""
    reason, own = "", 0.0
    if lost:
        reason = f"{lost} of {got.numel()} values are finite on one side only"
    elif error > allowed * scale + TINY:
        own, spread = own_errors()
        mean = float(difference.square().sum().div(both.sum()).sqrt())
        if error > OWN_ERRORS * own or mean > OWN_ERRORS * spread:
            said = f"error {error:.3g} at magnitude {scale:.3g} exceeds {allowed:g}"
            reason = f"{said} and twice the {own:.3g} of eager from the same values ({worst})"
    return result(error, scale, worst, reason, own)


def _worst(got: torch.Tensor, want: torch.Tensor, index: tuple[int, ...]) -> str:
    return f"worst at {list(index)}: {float(got[index]):.8g} instead of {float(want[index]):.8g}"


def _back(got: torch.Tensor, shape: Any, order: tuple[int, ...]) -> torch.Tensor:
    """The inverse of ``value.permute(order).reshape(got.shape)``."""
    moved = got.reshape([shape[a] for a in order])
    return moved.permute([order.index(a) for a in range(len(order))])


def order_of(value: torch.Tensor, got: torch.Tensor) -> tuple[int, ...] | None:
    """Order in which the axes of ``value`` lie in ``got``; None when the sizes differ.

    The order with the smallest error at a sample of places is meant: layouts are free inside the
    compiled model, and a wrong one shows in the layer that reads it.
    """
    if value.numel() != got.numel():
        return None
    best, least = tuple(range(value.ndim)), float("inf")
    if value.numel() == 0:
        return best
    places = torch.arange(0, got.numel(), _step(got.numel()))
    sample = got.reshape(-1)[places].double()
    for order in _orders(tuple(value.shape), tuple(got.shape)):
        index = _unravel(places, [value.shape[a] for a in order])
        error = float((value.permute(order)[index].double() - sample).abs().nan_to_num(0.0).max())
        if error < least:
            best, least = order, error
        if error <= 1e-6 * float(sample.abs().nan_to_num(0.0).max()):
            break
    return best


def _step(count: int) -> int:
    """Distance of sampled places: without a common divisor with the count, so that no axis is left
    at its first place by all of them, where other orders of the axes have the same values."""
    step = max(1, count // _SAMPLES)
    return next(s for s in range(step, 0, -1) if math.gcd(s, count) == 1)


def _orders(shape: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Identity, channels last, all that give the wanted extents (without those of 1), the rest."""
    rank = len(shape)
    axes = tuple(range(rank))
    yield axes
    if rank > 2:
        yield (0, *range(2, rank), 1)
    if rank > _MAX_RANK:
        return
    dense = [e for e in wanted if e != 1]
    rest = list(itertools.permutations(axes))
    yield from sorted(rest, key=lambda o: [shape[a] for a in o if shape[a] != 1] != dense)


def _unravel(place: Any, shape: Any) -> tuple[Any, ...]:
    index = []
    for extent in reversed(tuple(shape)):
        index.append(place % extent)
        place = place // extent
    return tuple(reversed(index))
