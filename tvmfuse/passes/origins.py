"""Which variables still hold the value of the exported node that they are named for.

An operator that moved in front of data movement computes the same numbers in another order. If the
axes are only permuted, verification finds the order; behind a split or joined axis it cannot.
"""

from __future__ import annotations

import tvm

from tvmfuse.graph import Graph


def settled(mod: tvm.IRModule, origins: dict[str, str]) -> dict[str, str]:
    """Origins without those of values whose axes were split or joined since.

    Of the variables with one origin the last has its shape. The others keep theirs if they are
    what the last one is a view of, or have the same extents in any order.
    """
    graph = Graph(mod)
    last = {origins[name]: name for name in graph.nodes if name in origins}
    views: set[str] = set()
    for name in last.values():
        while name not in views:
            views.add(name)
            node = graph.nodes[name]
            source = graph.node(node.operands[0]) if node.op == "reshape" else None
            if source is None or origins.get(source.name) != origins[name]:
                break
            name = source.name
    return {
        name: origin
        for name, origin in origins.items()
        if name in views
        or (name in graph.nodes and _extents(graph, name) == _extents(graph, last[origin]))
    }


def _extents(graph: Graph, name: str) -> list[int]:
    return sorted(e for e in graph.nodes[name].shape or () if e != 1)
