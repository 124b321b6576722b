"""The feasibility matrix: may operators share a kernel on this device, and does it pay?

Four columns. *Data dependence* is checked while groups grow (`tvmfuse.fusion.grow`: nobody else
reads what disappears) and where rules merge (`tvmfuse.fusion.rule`: no path out and back in). The
other three are numbers of a group against :class:`tvmfuse.hardware.limits.Limits`:

* memory: intermediate bytes against the cache in which they would be handed over otherwise, and
  registers alive against those that there are;
* intensity: operations a byte against the ridge of the roofline, and the time of one kernel
  against that of its parts;
* hardware: an instruction for the element type.

Estimates refuse what is certainly worse and call the rest ``ok`` or ``grey``: only measuring can
tell. Until it was measured (`tvmfuse.settle`) a grey group is fused, because it needs less memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tvmfuse.fusion.kernels import PRODUCTS, KernelGraph
from tvmfuse.hardware.limits import Limits

OK, GREY, REFUSED, MEASURED = "ok", "grey", "refused", "measured"
INTENSITY_MARK = 10.0  # operations a byte below which a kernel is bandwidth-bound on any device
MARGIN = 0.03  # gains and losses below this part of the time are not told apart
LEAST_GAIN_S = 1e-6
CACHE_SHARE = 0.75  # intermediates larger than this part of the cache go through memory
SPILLS = 2.0  # values alive at once, as a multiple of the registers, that are refused
# Registers that a function's polynomial needs beside its argument.
_TEMPORARIES = {"exp": 3, "sigmoid": 3, "tanh": 4, "erf": 4, "gelu": 5, "gelu_tanh": 5, "silu": 4,
                "mish": 5, "softplus": 4, "elu": 3, "selu": 3, "log": 4, "power": 5}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What a group computes and moves, as one kernel and as its parts.

    Parameters
    ----------
    dtype
        Element type of its anchor, or of its first member.
    result
        The member whose value is stored.
    parts
        How many kernels it would be unfused.
    flops
        Of all members; ``recomputed`` those that a broadcast repeats.
    read_bytes, write_bytes
        What the one kernel reads and writes.
    middle_bytes
        Intermediate tensors, which are neither written nor read when fused.
    parts_s
        Time of the parts by the roofline, with their calls.
    alive
        Values that are alive at once.
    product
        Whether it holds a product, whose tile fills registers of its own.
    """

    dtype: str
    result: str = ""
    parts: int = 0
    flops: float = 0.0
    recomputed: float = 0.0
    read_bytes: int = 0
    write_bytes: int = 0
    middle_bytes: int = 0
    parts_s: float = 0.0
    alive: int = 0
    product: bool = False

    def fused_s(self, limits: Limits) -> float:
        """Time of the one kernel by the roofline, with its call."""
        computing = (self.flops + self.recomputed) / limits.peak(self.dtype)
        moved = self.read_bytes + self.write_bytes
        return max(computing, moved / _speed(moved, limits)) + limits.launch_s

    @property
    def intensity(self) -> float:
        """Operations a byte of the one kernel."""
        moved = self.read_bytes + self.write_bytes
        return (self.flops + self.recomputed) / moved if moved else 0.0


@dataclass(frozen=True)
class Assessment:
    """One candidate in the four columns, with its verdict."""

    verdict: str
    reason: str
    middle_bytes: int
    handed_over: str
    registers: int
    intensity: float
    bound: str
    instruction: str
    parts_s: float
    fused_s: float


def joined(
    graph: KernelGraph,
    work: Work | None,
    members: Iterable[str],
    region: Iterable[str],
    limits: Limits,
) -> Work:
    """The work of a group after a region has joined it.

    Parameters
    ----------
    graph
        The kernels.
    work
        Of the group so far; None for a new group.
    members
        The group so far; a container in which names can be looked up.
    region
        What joins, in the order of ``main``; its last member is the group's new result.
    limits
        The device.
    """  # fmt: skip
    region, held = list(region), members if isinstance(members, set) else set(members)
    inside = set(region)
    first = graph.kernels[region[0]]
    before = work or Work(dtype=graph.nodes[first.name].dtype)
    reads = {
        str(operand.name) if hasattr(operand, "name") else str(id(operand)): operand
        for name in region
        for operand in graph.nodes[name].operands
    }
    outside = {n: o for n, o in reads.items() if n not in inside and n not in held}
    flops = sum(graph.kernels[name].flops for name in region)
    out = graph.kernels[region[-1]]
    repeated = sum(_repeats(graph, n, inside) * graph.kernels[n].flops for n in region[:-1])
    if work is not None and held:
        repeated += _repeats(graph, work.result, inside) * work.flops
    between = sum(graph.nodes[name].bytes for name in region[:-1])
    return replace(
        before,
        parts=before.parts + len(region),
        flops=before.flops + flops,
        result=out.name,
        recomputed=before.recomputed + repeated,
        read_bytes=before.read_bytes + sum(graph.bytes_of(o) for o in outside.values()),
        write_bytes=graph.nodes[out.name].bytes,
        middle_bytes=before.middle_bytes + between + (before.write_bytes if held else 0),
        parts_s=before.parts_s + sum(_alone_s(graph, name, limits) for name in region),
        alive=max(before.alive, _alive(graph, region)),
        product=before.product or any(graph.kernels[name].op in PRODUCTS for name in region),
    )


def work_of(graph: KernelGraph, members: Iterable[str], limits: Limits) -> Work:
    """The work of a whole group."""
    return joined(graph, None, (), members, limits)


def assess(work: Work, limits: Limits) -> Assessment:
    """The four columns of one candidate and the verdict that follows from them."""
    fits = work.middle_bytes <= CACHE_SHARE * limits.cache_bytes
    registers = work.alive + (limits.accumulators if work.product else 0)
    fused_s = work.fused_s(limits)
    verdict, reason = _verdict(work, limits, registers, fused_s)
    ridge = limits.ridge(work.dtype)
    return Assessment(
        verdict=verdict,
        reason=reason,
        middle_bytes=work.middle_bytes,
        handed_over="nothing" if not work.middle_bytes else "cache" if fits else "memory",
        registers=registers,
        intensity=work.intensity,
        bound="compute" if work.intensity >= ridge else "memory",
        instruction=limits.instructions.get(work.dtype, "none"),
        parts_s=work.parts_s,
        fused_s=fused_s,
    )


def _verdict(work: Work, limits: Limits, registers: int, fused_s: float) -> tuple[str, str]:
    if work.alive > SPILLS * limits.registers:
        return REFUSED, f"{work.alive} values alive at once, {limits.registers} registers"
    gain_s = work.parts_s - fused_s
    if gain_s < -MARGIN * work.parts_s:
        times = f"{fused_s * 1e6:.1f} us in one kernel, {work.parts_s * 1e6:.1f} us in its parts"
        return REFUSED, f"the estimate is slower: {times}"
    if work.parts < 2:
        return OK, ""
    if gain_s < MARGIN * work.parts_s or gain_s < LEAST_GAIN_S:
        return GREY, f"the estimated gain of {gain_s * 1e6:.1f} us is within the margin"
    if registers > limits.registers:
        return GREY, f"about {registers} registers of {limits.registers}: it may spill"
    floats = ("float16", "bfloat16")
    if work.product and work.dtype in floats and work.dtype not in limits.instructions:
        return GREY, f"no {work.dtype} instruction: computed in float32"
    return OK, ""


def _repeats(graph: KernelGraph, name: str, inside: set[str]) -> float:
    """How often a value is computed again for readers that broadcast it; 0 for none."""
    own = max(1, graph.kernels[name].elements)
    readers = (u for u in graph.users.get(name, ()) if u in inside and u in graph.kernels)
    return max((graph.kernels[u].elements / own - 1.0 for u in readers), default=0.0)


def _alone_s(graph: KernelGraph, name: str, limits: Limits) -> float:
    """Time of one kernel for itself, with its call."""
    kernel, node = graph.kernels[name], graph.nodes[name]
    seconds = kernel.flops / limits.peak(node.dtype)
    return max(seconds, kernel.moved / _speed(kernel.moved, limits)) + limits.launch_s


def _speed(moved: float, limits: Limits) -> float:
    """Bandwidth for what a kernel moves: the cache's if all of it fits there."""
    fits = moved <= CACHE_SHARE * limits.cache_bytes
    return limits.cache_bytes_per_s if fits else limits.dram_bytes_per_s


def _alive(graph: KernelGraph, region: list[str]) -> int:
    """Most values alive at once while a region is computed one element (vector) at a time."""
    last: dict[str, int] = {}
    for place, name in enumerate(region):
        for read in graph.reads(graph.nodes[name]):
            last[read] = place
    inside, live, most = set(region), 1, 1
    for place, name in enumerate(region):
        loads = sum(1 for r in set(graph.reads(graph.nodes[name])) if r not in inside)
        most = max(most, live + loads + _TEMPORARIES.get(graph.kernels[name].step, 0))
        ends = sum(last[r] == place for r in set(graph.reads(graph.nodes[name])) if r in inside)
        live += 1 - ends if place else 0
    return most


@dataclass(frozen=True)
class MatrixRow:
    """One group of the plan in the matrix: its last member, operators, work and verdict."""

    member: str
    ops: tuple[str, ...]
    work: Work
    assessment: Assessment

    def to_json(self) -> dict[str, Any]:
        """Plain data, times in microseconds."""
        found = self.assessment
        return {
            "group": self.member,
            "ops": list(self.ops),
            "verdict": found.verdict,
            "reason": found.reason,
            "intermediate_bytes": found.middle_bytes,
            "handed_over_in": found.handed_over,
            "registers": found.registers,
            "flops": self.work.flops,
            "bytes": self.work.read_bytes + self.work.write_bytes,
            "flops_per_byte": round(found.intensity, 3),
            "above_ten": found.intensity >= INTENSITY_MARK,
            "bound": found.bound,
            "instruction": found.instruction,
            "estimated_us": {
                "parts": round(found.parts_s * 1e6, 2),
                "fused": round(found.fused_s * 1e6, 2),
            },
        }
