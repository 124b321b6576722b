"""May a norm of rows join the product in front of it?

Both are anchors, and one template computes them together (`tvmfuse.schedules.cpu.normed_dense`).
The operators between them are judged by their own rules; here is what concerns the pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvmfuse.fusion.kernels import KernelGraph
from tvmfuse.fusion.rules.vertical_table import PAIRS
from tvmfuse.fusion.step import INJECTIVE
from tvmfuse.hardware import Hardware
from tvmfuse.schedules.anchor import Dense
from tvmfuse.schedules.cpu.normed_dense import (
    best_strip,
    dense_extents,
    is_row_norm,
    lost_share,
    strip_bytes,
    tight,
)
from tvmfuse.verdict import YES, Verdict, no

# Larger estimated losses of the product were losses of the pair when measured; what the pair gains
# (the norm's call, and its input from L1 or L2) is 1 to 3 % of a product with K and N of 768.
MOST_LOST = 0.03


def norm_behind_product(
    graph: KernelGraph, members: Sequence[str], norm: str, hardware: Hardware
) -> Verdict:
    """Judge a norm that wants to join a group.

    Parameters
    ----------
    graph
        The kernels.
    members
        The group so far: a product, and what joined it, in the order of ``main``.
    norm
        The kernel that wants to join.
    hardware
        The target.
    """
    node, value = graph.nodes[norm], graph.nodes[members[-1]]
    record = _product(graph, members)
    if record is None:
        return no("its group is not one product with element-wise operators", norm)
    others = [user for user in graph.users.get(value.name, ()) if user != norm]
    if others:
        return no(f"its input is read by {others[0]} as well, and kernels have one result", norm)
    reads = [i for i, o in enumerate(node.value.args[1].fields) if value.var.same_as(o)]
    if reads != [0] or value.shape != node.shape or (node.shape or (0,))[-1] != record.O:
        return no("it does not normalise the rows of the product", norm)
    if not is_row_norm(graph.function(norm)):
        return no("it is not two sums along the last axis", norm)
    return _pays(record, norm, hardware)


def behind_norm(graph: KernelGraph, members: Sequence[str], name: str) -> Verdict:
    """Judge an operator behind a group: a product's norm is computed for all of its rows or none.

    Parameters
    ----------
    graph
        The kernels.
    members
        The group so far.
    name
        The kernel that wants to join.
    """
    ops = [graph.kernels[m].step for m in members]
    normed = any((op, norm) in PAIRS for op in ops for norm in ops)
    one, other = graph.nodes[members[-1]].shape, graph.nodes[name].shape
    if normed and (one is None or other is None or tight(one) != tight(other)):
        return no(f"{graph.kernels[name].op} has other rows than the norm", name)
    return YES


def _product(graph: KernelGraph, members: Sequence[str]) -> Dense | None:
    """The record of the group's only anchor; None unless that is a dense product."""
    anchors = [m for m in members if graph.kernels[m].kind > INJECTIVE]
    record = graph.record(anchors[0])
    return record if len(anchors) == 1 and isinstance(record, Dense) else None


def _pays(record: Dense, norm: str, hardware: Hardware) -> Verdict:
    """What whole rows in one piece cost the product, and what they take of the cache."""
    if hardware.kind != "llvm":
        return no("only the CPU has a kernel for a product and its norm together", norm)
    extents = dense_extents(record, hardware)
    strip, half = best_strip(extents, hardware), hardware.l2_bytes // 2
    rows, taken = strip.ri * strip.wb * strip.tw, strip_bytes(strip, extents)
    if taken > half:
        return no(f"{rows} rows of it take {taken} bytes, more than half of L2 ({half})", norm)
    lost = lost_share(extents, hardware)
    if lost > MOST_LOST:
        strips = math.ceil(extents.rows * extents.columns / rows)
        cut = f"{strips} strips of {rows} rows on {hardware.cores} cores"
        return no(f"whole rows would slow the product by {lost:.1%} ({cut})", norm)
    return YES
