"""Which algorithms can compute an anchor on a CPU, the model's favourite first."""

from __future__ import annotations

from tvmfuse.hardware import Hardware
from tvmfuse.schedules.anchor import (
    Anchor,
    Attention,
    BatchMatmul,
    Dense,
    IntegerConv2d,
    IntegerDense,
)
from tvmfuse.schedules.cpu import winograd
from tvmfuse.schedules.cpu.attention import attention_variants
from tvmfuse.schedules.cpu.batch_matmul import batch_matmul_variants
from tvmfuse.schedules.cpu.contraction import conv2d_direct, dense
from tvmfuse.schedules.cpu.depthwise import applicable as is_depthwise
from tvmfuse.schedules.cpu.depthwise import depthwise
from tvmfuse.schedules.cpu.integer import integer
from tvmfuse.schedules.cpu.tile_products import has_tiles, tiles
from tvmfuse.schedules.cpu.winograd_rows import winograd_rows
from tvmfuse.schedules.variant import AnyVariant, Variant, twin, widened

_MOVED_WEIGHTS = frozenset(("direct", "depthwise"))  # variants that only rearrange their weights


def variants(anchor: Anchor, hardware: Hardware) -> tuple[AnyVariant, ...]:
    """All variants of ``anchor`` in ascending order of estimated time."""
    if isinstance(anchor, Attention):
        return attention_variants(anchor, hardware)
    if isinstance(anchor, BatchMatmul):
        return batch_matmul_variants(anchor, hardware)
    by_tiles = (tiles(anchor, hardware),) if has_tiles(anchor, hardware) else ()
    if isinstance(anchor, IntegerConv2d | IntegerDense):
        return (*by_tiles, integer(anchor, hardware))
    if anchor.result:
        same = [v for v in variants(twin(anchor), hardware) if v.name in _MOVED_WEIGHTS]
        return (*by_tiles, *(widened(v, anchor) for v in same if isinstance(v, Variant)))
    if isinstance(anchor, Dense):
        return (dense(anchor, hardware),)
    if is_depthwise(anchor):
        return (depthwise(anchor, hardware),)
    found = [conv2d_direct(anchor, hardware)]
    if winograd.applicable(anchor, hardware):
        found += [winograd.winograd(anchor, m, hardware) for m in sorted(winograd.AT)]
        found.append(winograd_rows(anchor, hardware))
    return tuple(sorted(found, key=lambda v: v.cycles))
