"""How many vector registers the compiled code of a kernel stores on the stack."""

from __future__ import annotations

import re
from typing import Any

import tvm

from tvmfuse.hardware.record import Hardware
from tvmfuse.schedules.cpu.amx import with_tile_instructions

# The widest registers only: narrower ones also carry a kernel's arguments over the stack.
_STORES = (
    (64, r"^\s*v?mov\w+\s+%zmm\d+,\s*-?\w*\(%r[sb]p\b"),
    (32, r"^\s*v?mov\w+\s+%ymm\d+,\s*-?\w*\(%r[sb]p\b"),
    (16, r"^\s*v?mov\w+\s+%xmm\d+,\s*-?\w*\(%r[sb]p\b|^\s*st[rp]\s+q\d+,.*\[(?:sp|x29)\b"),
)


def count_spills(module: Any, hardware: Hardware) -> int:
    """Count the instructions that store a whole vector register on the stack.

    Each is a value, or a place of a scratch tile, that the registers did not hold. It is a count
    of the code, not of what runs: a store in a loop counts once.

    Parameters
    ----------
    module
        Scheduled, with one function ``main``.
    hardware
        What it is compiled for.
    """
    pattern = next(p for width, p in _STORES if hardware.vector_bytes >= width)
    target = tvm.target.Target(hardware.target_json)
    module = with_tile_instructions(module)
    assembly = str(tvm.compile(module, target=target).mod.inspect_source("asm"))
    return len(re.findall(pattern, assembly, re.MULTILINE))
