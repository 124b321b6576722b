"""Which algorithms can compute an anchor on a CPU, the model's favourite first."""

from __future__ import annotations

from tvmfuse.hardware import Hardware
from tvmfuse.schedules.anchor import Anchor, Dense
from tvmfuse.schedules.cpu import winograd
from tvmfuse.schedules.cpu.contraction import conv2d_direct, dense
from tvmfuse.schedules.cpu.depthwise import applicable as is_depthwise
from tvmfuse.schedules.cpu.depthwise import depthwise
from tvmfuse.schedules.variant import Variant


def variants(anchor: Anchor, hardware: Hardware) -> tuple[Variant, ...]:
    """All variants of ``anchor`` in ascending order of estimated time."""
    if isinstance(anchor, Dense):
        return (dense(anchor, hardware),)
    if is_depthwise(anchor):
        return (depthwise(anchor),)
    direct = conv2d_direct(anchor, hardware)
    if not winograd.applicable(anchor, hardware):
        return (direct,)
    found: list[tuple[float, Variant]] = [(winograd.direct_cycles(anchor, hardware), direct)]
    for m in sorted(winograd.AT):
        cycles = winograd.estimate_cycles(anchor, m, hardware)
        found.append((cycles, winograd.winograd(anchor, m, hardware)))
    return tuple(v for _, v in sorted(found, key=lambda pair: pair[0]))
