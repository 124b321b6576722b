"""What a template is, and the few schedule moves that all templates share.

A template is ``apply(func, hardware, tunable) -> None | [Schedule]``: None means "not mine"; with
``tunable=False`` the list holds one schedule, the best by the analytic model; with
``tunable=True`` one schedule per structure, whose sampled decisions stand in its trace so that
MetaSchedule can replay, mutate and store them.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import For, PrimFunc, SeqStmt

from tvmfuse.hardware import Hardware

FAMILY = "tvmfuse.family"  # block annotation: which template an anchor block asks for
LANES = "tvmfuse.lanes"  # block annotation: lanes of the packed weight's innermost axis
WRITTEN = "tvmfuse.written"  # block annotation: its loops are written out, for no one to change
STRIDE = "tvmfuse.column_stride_bytes"  # block annotation: distance of neighbouring columns
EXACT = "tvmfuse.exact"  # block annotation: of integers, so that no order of its sums rounds less

L1_WAY_BYTES = 4096  # bytes one way of the L1 data cache spans on x86: 64 sets of 64 bytes
L1_WAYS = 8  # fewest ways of current x86 cores (Zen 8, Golden Cove 12)


class Template(Protocol):
    """A schedule generator for one kernel family on one target family."""

    name: str

    def apply(self, func: PrimFunc, hardware: Hardware, tunable: bool) -> list[Schedule] | None: ...


@dataclass(frozen=True)
class Block:
    """One block of a kernel as seen before any scheduling.

    Parameters
    ----------
    rv
        Handle in the schedule it was read from.
    name
        Block name.
    kinds
        One letter an axis: ``S`` spatial, ``R`` reduction, ``O`` other.
    extents
        Loop extents, outermost first.
    family
        The ``tvmfuse.family`` annotation, or empty.
    """

    rv: Any
    name: str
    kinds: str
    extents: tuple[int, ...]
    family: str
    annotations: dict[str, Any]

    @property
    def spatial(self) -> tuple[int, ...]:
        """Extents of the spatial axes."""
        return tuple(e for k, e in zip(self.kinds, self.extents, strict=True) if k == "S")

    @property
    def reduction(self) -> tuple[int, ...]:
        """Extents of the reduction axes."""
        return tuple(e for k, e in zip(self.kinds, self.extents, strict=True) if k == "R")


_KINDS = {0: "S", 2: "R"}


def new_schedule(func: PrimFunc) -> Schedule:
    """Open a copy of ``func`` for scheduling, under the name ``main``.

    The copy is a deep one: ``with_attr`` shares the body with the original, and a Schedule that
    is the only owner of the new function rewrites that body in place (TVM 0.27).
    """
    named = func.with_attr("global_symbol", "main")
    return Schedule(tvm.IRModule({"main": pickle.loads(pickle.dumps(named))}))


def blocks(sch: Schedule) -> list[Block]:
    """All blocks under the root in program order; [] when the function has an odd form."""
    try:
        handles = sch.get_child_blocks(sch.get_sblock("root"))
    except (ScheduleError, RuntimeError):
        return []
    return [read_block(sch, rv) for rv in handles]


def elementwise(func: PrimFunc) -> Schedule | None:
    """A kernel without sums, its blocks inlined into its results; None for another kernel."""
    sch = new_schedule(func)
    found = blocks(sch)
    if not found or any(set(b.kinds) - {"S"} or -1 in b.extents for b in found):
        return None
    for block in found:
        if sch.get_consumers(block.rv):
            try:
                sch.compute_inline(block.rv)
            except ScheduleError:
                continue  # a buffer that is also an output stays a stage of its own
    return sch


def read_block(sch: Schedule, rv: Any) -> Block:
    """Facts of one block as it stands in the schedule."""
    stmt = sch.get(rv)
    kinds = "".join(_KINDS.get(int(v.iter_type), "O") for v in stmt.iter_vars)
    extents = tuple(as_int(v.dom.extent) for v in stmt.iter_vars)
    notes = {str(k): v for k, v in stmt.annotations.items()}
    return Block(rv, str(stmt.name_hint), kinds, extents, str(notes.get(FAMILY, "")), notes)


def has_loops(sch: Schedule, block: Any) -> bool:
    """Whether a block's body has loops of its own: somebody wrote it, for no one to change."""
    return isinstance(sch.get(block).body, For | SeqStmt)


def is_plain(sch: Schedule, block: Block) -> bool:
    """Whether a block of known size is one statement over spatial and summed axes."""
    known = -1 not in block.extents and set(block.kinds) <= {"S", "R"}
    return known and not has_loops(sch, block.rv)


def as_int(expr: Any) -> int:
    """Value of a constant extent; -1 for a symbolic one."""
    value = getattr(expr, "value", None)
    return int(value) if value is not None else -1


def find_family(found: Sequence[Block], family: str) -> Block | None:
    """The one block of ``family``; None when there is none or more than one."""
    mine = [b for b in found if b.family == family]
    return mine[0] if len(mine) == 1 else None


def detach_output(sch: Schedule, anchor: Any) -> Any:
    """Inline every block behind ``anchor`` into the last one and return that one.

    A kernel without an epilogue gets a copy block, so that the anchor always accumulates in a
    buffer of its own, which can then live in registers.
    """
    last = _last_consumer(sch, anchor)
    if last is None:
        return sch.cache_write(anchor, 0, "global")
    return last


def _last_consumer(sch: Schedule, anchor: Any) -> Any | None:
    """Inline consumers until one is left, over all branches; None when nothing reads ``anchor``."""
    while users := sch.get_consumers(anchor):
        inner = next((user for user in users if sch.get_consumers(user)), None)
        if inner is None:
            return users[0]
        sch.compute_inline(inner)
    return None


def inline_producers(sch: Schedule, anchor: Any, keep: Iterable[str]) -> None:
    """Inline the blocks in front of ``anchor`` except those whose names are in ``keep``.

    Blocks in front of a kept one are inlined into that.
    """
    for producer in sch.get_producers(anchor):
        inline_producers(sch, producer, keep)
        if str(sch.get(producer).name_hint) not in keep:
            sch.compute_inline(producer)


def divisors(n: int, at_most: int | None = None) -> list[int]:
    """Divisors of ``n`` in ascending order, up to ``at_most``."""
    bound = n if at_most is None else min(n, at_most)
    return [d for d in range(1, bound + 1) if n % d == 0]


def pick(sch: Schedule, candidates: Sequence[int], default: int, tunable: bool) -> Any:
    """Record a decision in the trace: free when ``tunable``, else fixed to ``default``."""
    names = list(candidates)
    chosen = None if tunable else names.index(default)
    even = [1.0 / len(names)] * len(names)
    return sch.sample_categorical(names, even, decision=chosen)


def imbalance(tasks: int, cores: int) -> float:
    """Slow-down of ``tasks`` equal pieces on ``cores`` against a perfect split, ≥ 1."""
    return math.ceil(tasks / cores) * cores / tasks


def columns_in_l1(stride_bytes: int) -> int:
    """How many columns ``stride_bytes`` apart stay in L1 at once.

    A large power-of-two stride maps all columns of a tile to one or two sets. Measured on Zen 4
    with 2 KiB (C = 512): 14 columns ran at full speed, 28 at a quarter of it.
    """
    if stride_bytes <= 0:
        return L1_WAY_BYTES
    sets = L1_WAY_BYTES // max(64, math.gcd(stride_bytes, L1_WAY_BYTES))
    return sets * L1_WAYS


def pad_parallel(sch: Schedule, block: Any, lanes: int) -> None:
    """Schedule an injective copy block: outer axes parallel, innermost axis vectorised."""
    loops = sch.get_loops(block)
    *outer, inner = loops
    if not outer:
        split_vector(sch, inner, lanes, parallel=True)
        return
    split_vector(sch, inner, lanes, parallel=False)
    sch.parallel(sch.fuse(*outer[: max(1, len(outer) - 1)]))


def vector_width(extent: int, lanes: int) -> int:
    """Widest power of two up to ``lanes`` that divides ``extent``."""
    width = lanes
    while width > 1 and extent % width:
        width //= 2
    return width


def loop_extent(sch: Schedule, loop: Any) -> int:
    """Extent of a loop; -1 for a symbolic one."""
    return as_int(sch.get(loop).extent)


def depth_in(sch: Schedule, block: Any, loop: Any) -> int:
    """How many loops of ``block`` stand at or outside ``loop``."""
    wanted = sch.get(loop)
    for depth, mine in enumerate(sch.get_loops(block)):
        if sch.get(mine).same_as(wanted):
            return depth + 1
    raise ValueError(f"loop {wanted.loop_var} is not around block {sch.get(block).name_hint}")


def depth_of(sch: Schedule, block: Any, loop: Any) -> int:
    """How many loops a block will be under once computed at ``loop`` of its consumer."""
    return depth_in(sch, sch.get_consumers(block)[0], loop)


def split_vector(sch: Schedule, loop: Any, lanes: int, *, parallel: bool) -> None:
    """Vectorise ``loop`` by the widest power of two ≤ ``lanes`` that divides its extent."""
    width = vector_width(loop_extent(sch, loop), lanes)
    if width == 1:
        if parallel:
            sch.parallel(loop)
        return
    outer, inner = sch.split(loop, [None, width])
    sch.vectorize(inner)
    if parallel:
        sch.parallel(outer)
