"""Which algorithms can compute an anchor on one kind of hardware."""

from __future__ import annotations

from tvmfuse.hardware import Hardware
from tvmfuse.schedules.anchor import Anchor
from tvmfuse.schedules.cpu import variants as cpu
from tvmfuse.schedules.cuda import variants as cuda
from tvmfuse.schedules.variant import AnyVariant

_OF_KIND = {"llvm": cpu.variants, "cuda": cuda.variants_of}


def variants(anchor: Anchor, hardware: Hardware) -> tuple[AnyVariant, ...]:
    """All variants of ``anchor`` in ascending order of estimated time."""
    return _OF_KIND[hardware.kind](anchor, hardware)
