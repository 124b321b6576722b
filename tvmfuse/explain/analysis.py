"""What a graph spends its work on: shares by operator, heavy regions, bandwidth-bound chains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tvmfuse.graph import Operator
from tvmfuse.hardware.limits import Limits

_LEAST_CHAIN = 2


def side(operator: Operator, limits: Limits) -> str:
    """``"compute"`` or ``"memory"``: the side of the ridge on which an operator lies."""
    ridge = limits.ridge(operator.dtype)
    return "compute" if operator.intensity >= ridge else "memory"


def by_operator(
    operators: Sequence[Operator], limits: Limits, measured_ms: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """One row a kind of operator, most work first; by measured time where that is given.

    Parameters
    ----------
    operators
        Of one graph.
    limits
        The device.
    measured_ms
        Time by kind of operator, e.g. from a profile.
    """
    kinds: dict[str, list[Operator]] = {}
    for operator in operators:
        kinds.setdefault(operator.op, []).append(operator)
    all_flops = sum(o.flops for o in operators) or 1.0
    rows = []
    for op, group in kinds.items():
        flops, moved = sum(o.flops for o in group), sum(o.moved_bytes for o in group)
        sides = Counter(side(o, limits) for o in group)
        rows.append(
            {
                "op": op,
                "count": len(group),
                "share": round(len(group) / len(operators), 4),
                "flops": flops,
                "flops_share": round(flops / all_flops, 4),
                "bytes": moved,
                "flops_per_byte": round(flops / moved, 3) if moved else 0.0,
                "compute": sides["compute"],
                "memory": sides["memory"],
                **({"measured_ms": measured_ms.get(op, 0.0)} if measured_ms is not None else {}),
            }
        )
    order = "measured_ms" if measured_ms is not None else "flops"
    return sorted(rows, key=lambda r: (-r[order], -r["bytes"], r["op"]))


def heavy_regions(operators: Sequence[Operator], limits: Limits) -> list[dict[str, Any]]:
    """Compute-bound operators that lie together, most work first.

    Two lie together when one reads the other, or when a single bandwidth-bound operator (an
    activation, a residual) stands between them.
    """
    named = {o.name: o for o in operators}
    leader = {o.name: o.name for o in operators if side(o, limits) == "compute"}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for operator in operators:
        if operator.name not in leader:
            continue
        for read in operator.reads:
            near = [read] if read in leader else [r for r in named[read].reads if r in leader]
            for other in near:
                leader[find(other)] = find(operator.name)
    regions: dict[str, list[Operator]] = {}
    for name in leader:
        regions.setdefault(find(name), []).append(named[name])
    all_flops = sum(o.flops for o in operators) or 1.0
    rows = [
        {
            "first": group[0].name,
            "last": group[-1].name,
            "operators": len(group),
            "flops": sum(o.flops for o in group),
            "flops_share": round(sum(o.flops for o in group) / all_flops, 4),
        }
        for group in regions.values()
    ]
    return sorted(rows, key=lambda r: (-r["flops"], r["first"]))


def memory_chains(operators: Sequence[Operator], limits: Limits) -> list[dict[str, Any]]:
    """Runs of bandwidth-bound operators of which each alone reads the one before it."""
    readers: Counter[str] = Counter(r for o in operators for r in o.reads)
    chain_of: dict[str, list[Operator]] = {}
    for operator in operators:
        if side(operator, limits) == "compute":
            continue
        before = [r for r in operator.reads if r in chain_of and readers[r] == 1]
        ends = [chain_of[r] for r in before if chain_of[r][-1].name == r]
        chain = ends[0] if ends else []
        chain.append(operator)
        chain_of[operator.name] = chain
    chains = {id(c): c for c in chain_of.values() if len(c) >= _LEAST_CHAIN}.values()
    rows = [
        {
            "first": chain[0].name,
            "last": chain[-1].name,
            "ops": [o.op for o in chain],
            "bytes": sum(o.moved_bytes for o in chain),
        }
        for chain in chains
    ]
    return sorted(rows, key=lambda r: (-r["bytes"], r["first"]))
