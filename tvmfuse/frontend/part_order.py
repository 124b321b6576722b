"""In which order the parts of a program run, and which operators each part takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from torch import fx

COMPILED, EAGER, CHOICE = "compiled", "eager", "choice"


def in_parts(nodes: list[fx.Node], kinds: dict[fx.Node, str]) -> list[tuple[list[fx.Node], str]]:
    """Put operators into parts of one kind, with as few borders as possible.

    Parameters
    ----------
    nodes
        Calls in graph order.
    kinds
        The kind of each.

    Returns
    -------
    list of (nodes, kind)
        In the order in which they run.
    """
    found = [k for k in (COMPILED, EAGER, CHOICE) if k in kinds.values()]
    return min((_taking_turns(nodes, kinds, o) for o in itertools.permutations(found)), key=len)


def _taking_turns(
    nodes: list[fx.Node], kinds: dict[fx.Node, str], order: Iterable[str]
) -> list[tuple[list[fx.Node], str]]:
    """One kind after the other, each with all that is ready."""
    parts: list[tuple[list[fx.Node], str]] = []
    pending, waiting = list(nodes), set(nodes)
    for kind in itertools.cycle(order):
        if not pending:
            break
        part = []
        for node in pending:
            if kinds[node] == kind and not waiting & set(node.all_input_nodes):
                part.append(node)
                waiting.discard(node)
        if part:
            parts.append((part, kind))
        pending = [n for n in pending if n in waiting]
    return parts
