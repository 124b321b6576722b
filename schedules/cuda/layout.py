"""Which axis of a sum runs through memory in order: it decides who may share a row of it."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm.s_tir import Schedule
from tvm.tirx import Var

from tvmfuse.schedules import base


def innermost(sch: Schedule, block: base.Block) -> set[str]:
    """Kinds of the axes (``S``, ``R``) by which a block's inputs are read side by side.

    An input counts where its last index that changes follows one axis; inputs that a block reads
    in one place, or over few elements, do not.
    """
    stmt = sch.get(block.rv)
    kinds = dict(zip([v.var for v in stmt.iter_vars], block.kinds, strict=True))
    sizes = dict(zip(kinds, block.extents, strict=True))
    written = [region.source for region in stmt.writes]
    found: dict[str, int] = {}
    for region in stmt.reads:
        if any(region.source.same_as(w) for w in written):
            continue
        for part in reversed(region.region):
            axes = [v for v in _variables(part) if v in kinds and sizes[v] > 1]
            if axes:
                whole = _volume(region.source)
                for axis in axes:
                    found[kinds[axis]] = max(found.get(kinds[axis], 0), whole)
                break
    largest = max(found.values(), default=0)
    return {kind for kind, size in found.items() if size == largest}


def _variables(part: Any) -> list[Var]:
    found: list[Var] = []
    for expr in (part.min, part.extent):
        tvm_ffi.structural_walk(expr, (Var, found.append))
    return list(dict.fromkeys(found))


def _volume(buffer: Any) -> int:
    size = 1
    for extent in buffer.shape:
        size *= max(1, base.as_int(extent))
    return size
