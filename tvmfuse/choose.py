"""Choose a variant and a schedule for every kernel: the fastest that the weights leave room for.

Winograd variants trade memory for time: F(4x4) holds four times the weights of the definition. The
fastest choice for each kernel is taken first; while the packed weights together exceed both
``WEIGHT_GROWTH`` times the logical ones and ``WEIGHT_SLACK_BYTES`` more than them, the kernel that
loses the least time per byte gives way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tvm.tirx import PrimFunc

from tvmfuse.database import Record, TuningLog
from tvmfuse.errors import LogError
from tvmfuse.hardware import Hardware
from tvmfuse.passes.specialize import GroupKernel
from tvmfuse.schedules import schedule_by_template
from tvmfuse.schedules.variant import AnyVariant
from tvmfuse.tuning.task import as_main

WEIGHT_GROWTH = 1.5  # packed bytes per logical byte of all weights together
WEIGHT_SLACK_BYTES = 8 << 20  # what any model may add, however small its weights
NOMINAL_HZ = 3e9  # puts estimated cycles beside measured seconds; only their order matters


@dataclass(frozen=True)
class Choice:
    """The schedule of one distinct kernel.

    Parameters
    ----------
    variant
        Index into the group's variants.
    kernel
        Scheduled PrimFunc.
    origin
        ``"log"`` or the name of the template.
    seconds
        Best measured time in the log; None for a template.
    note
        Why the log's record was not used; empty otherwise.
    """

    variant: int
    kernel: PrimFunc
    origin: str
    seconds: float | None
    note: str = ""


@dataclass(frozen=True)
class _Option:
    """One variant of one kernel: seconds (measured or estimated), bytes, and record."""

    variant: int
    seconds: float
    weight_bytes: int
    record: Record | None


class _Kernel:
    """One distinct kernel with its options, the fastest first, and how often it occurs."""

    def __init__(self, group: GroupKernel, log: TuningLog | None) -> None:
        self.group, self.count = group, 0
        self.options = _options(group, log)
        self.chosen = self.options[0]
        self.least_bytes = min((v.weight_bytes for v in group.variants), default=0)

    def smaller(self) -> _Option | None:
        """The option with less weight that costs the least time per byte saved."""
        less = [o for o in self.options if o.weight_bytes < self.chosen.weight_bytes]
        return min(less, key=self.price, default=None)

    def price(self, option: _Option) -> float:
        """Time lost for each byte saved by changing to ``option``."""
        return (option.seconds - self.chosen.seconds) / (
            self.chosen.weight_bytes - option.weight_bytes
        )


def _options(group: GroupKernel, log: TuningLog | None) -> list[_Option]:
    """Measured variants if there are any, else all of them by the model."""
    records = [log.best(as_main(kernel)) if log is not None else None for kernel in group.kernels]
    sizes = [v.weight_bytes for v in group.variants] or [0]
    found = [
        _Option(i, record.seconds, sizes[i], record)
        for i, record in enumerate(records)
        if record is not None
    ]
    if not found:
        cycles = [v.cycles for v in group.variants] or [0.0]
        found = [_Option(i, c / NOMINAL_HZ, sizes[i], None) for i, c in enumerate(cycles)]
    return sorted(found, key=lambda o: o.seconds)


def choose_kernels(
    groups: Iterable[GroupKernel], log: TuningLog | None, hardware: Hardware
) -> dict[str, Choice]:
    """Choose for each group; groups with equal kernels get the same choice.

    A record that does not apply to its own kernel is left out, and its choice says so.
    """
    distinct: dict[int, _Kernel] = {}
    names: dict[str, int] = {}
    for group in groups:
        key = id(group.kernels)  # equal groups share one tuple of kernels, kept alive here
        names[group.name] = key
        if key not in distinct:
            distinct[key] = _Kernel(group, log)
        distinct[key].count += 1
    _fit_weights(list(distinct.values()))
    made = {key: _choice(kernel, hardware) for key, kernel in distinct.items()}
    return {name: made[key] for name, key in names.items()}


def _fit_weights(kernels: list[_Kernel]) -> None:
    """Give up the least time until the packed weights fit."""
    logical = sum(k.count * k.least_bytes for k in kernels)
    while True:
        packed = sum(k.count * k.chosen.weight_bytes for k in kernels)
        movable = [(k, option) for k in kernels if (option := k.smaller()) is not None]
        if packed <= max(WEIGHT_GROWTH * logical, logical + WEIGHT_SLACK_BYTES) or not movable:
            return
        kernel, option = min(movable, key=lambda pair: pair[0].price(pair[1]))
        kernel.chosen = option


def _choice(kernel: _Kernel, hardware: Hardware) -> Choice:
    index, record = kernel.chosen.variant, kernel.chosen.record
    func = kernel.group.kernels[index]
    note = ""
    if record is not None:
        try:
            scheduled = record.schedule(as_main(func)).mod["main"]
            return Choice(index, scheduled, "log", record.seconds)
        except LogError as error:
            note = f"{error}; the template is used, and tuning with --retune measures it again"
    schedule, template = schedule_by_template(func, hardware)
    return Choice(index, schedule.mod["main"], template, None, note)


def rounds_least(group: GroupKernel, variant: AnyVariant) -> bool:
    """Whether no other variant of the group rounds less: what is left without Winograd."""
    return variant.rtol == min(v.rtol for v in group.variants)


def restricted(
    groups: list[GroupKernel], keep: Callable[[GroupKernel, AnyVariant], bool]
) -> list[GroupKernel]:
    """The groups with only some of their variants; those that shared kernels share them again."""
    shared: dict[int, tuple[PrimFunc, ...]] = {}
    found = []
    for group in groups:
        index = [i for i, v in enumerate(group.variants) if keep(group, v)]
        if len(index) == len(group.variants):
            found.append(group)
            continue
        kernels = shared.setdefault(id(group.kernels), tuple(group.kernels[i] for i in index))
        variants = tuple(group.variants[i] for i in index)
        found.append(replace(group, variants=variants, kernels=kernels))
    return found
