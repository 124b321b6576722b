"""Patterns over a graph: written as expressions, matched with the reason of the first mismatch.

    scores = Call("matmul", Any("q"), Any("kt"))
    Call("matmul", Call("nn.softmax", scores, bind="softmax"), Any("v"))

A match binds names to expressions and lists the nodes that it covers. A mismatch says how many
operators matched before it and what stood in the way, so that ``explain --why`` can show the
candidate that came furthest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any as Anything

from tvm.ir import GenericConst

from tvmfuse.graph import Graph

COMMUTATIVE = frozenset(("add", "multiply", "maximum", "minimum"))


class Pattern:
    """One of :class:`Any`, :class:`Constant`, :class:`Call` and :class:`Either`."""


@dataclass(frozen=True)
class Any(Pattern):
    """Any expression."""

    bind: str


@dataclass(frozen=True)
class Constant(Pattern):
    """A constant."""

    bind: str


class Call(Pattern):
    """A call of one of ``ops``; arguments behind the given patterns are not looked at."""

    def __init__(self, ops: str | tuple[str, ...], *args: Pattern, bind: str = "") -> None:
        self.ops = (ops,) if isinstance(ops, str) else ops
        self.args = args
        self.bind = bind


class Either(Pattern):
    """The first of several patterns that matches."""

    def __init__(self, *options: Pattern) -> None:
        self.options = options


@dataclass(frozen=True)
class Match:
    """Where a pattern or a rule applies.

    Parameters
    ----------
    members
        Names of the nodes it covers, in the order in which they matched.
    outputs
        Those whose value is wanted outside; the others disappear.
    bound
        Expressions by the names that the pattern gives them.
    """

    members: tuple[str, ...]
    outputs: tuple[str, ...]
    bound: dict[str, Anything] = field(default_factory=dict)


@dataclass(frozen=True)
class Mismatch:
    """Falsy: how many operators matched, and what the next one was instead."""

    progress: int
    reason: str
    culprit: str = ""

    def __bool__(self) -> bool:
        return False


@dataclass
class _State:
    bound: dict[str, Anything]
    members: list[str]


def match(pattern: Pattern, graph: Graph, name: str) -> Match | Mismatch:
    """Match ``pattern`` with the node ``name`` as its root."""
    state = _State({}, [])
    failed = _match(pattern, graph, graph.nodes[name].var, state)
    if failed is not None:
        return failed
    return Match(tuple(dict.fromkeys(state.members)), (name,), state.bound)


def _match(pattern: Pattern, graph: Graph, expr: Anything, state: _State) -> Mismatch | None:
    if isinstance(pattern, (Any, Constant)):
        if isinstance(pattern, Constant) and not isinstance(expr, GenericConst):
            return Mismatch(len(state.members), f"{pattern.bind} is not a constant", str(expr))
        known = state.bound.setdefault(pattern.bind, expr)
        if known is not expr and not known.same_as(expr):
            return Mismatch(len(state.members), f"two different {pattern.bind}", str(expr))
        return None
    if isinstance(pattern, Either):
        return _either(pattern.options, graph, expr, state)
    assert isinstance(pattern, Call)
    node = graph.node(expr)
    if node is None or node.op not in pattern.ops:
        wanted = " or ".join(pattern.ops)
        found = node.op if node is not None else "an input or a constant"
        culprit = node.name if node is not None else ""
        return Mismatch(len(state.members), f"{wanted} expected, {found} found", culprit)
    if pattern.bind:
        state.bound[pattern.bind] = node.var
    state.members.append(node.name)
    operands = node.value.args
    if len(operands) < len(pattern.args):
        return Mismatch(len(state.members), f"{node.op} has {len(operands)} arguments", node.name)
    if node.op in COMMUTATIVE and len(pattern.args) == 2:
        swapped = [[operands[0], operands[1]], [operands[1], operands[0]]]
        return _first(
            [lambda o=order: _all(pattern.args, graph, o, state) for order in swapped], state
        )
    return _all(pattern.args, graph, operands, state)


def _all(
    patterns: Sequence[Pattern], graph: Graph, operands: Sequence[Anything], state: _State
) -> Mismatch | None:
    for pattern, operand in zip(patterns, operands, strict=False):
        failed = _match(pattern, graph, operand, state)
        if failed is not None:
            return failed
    return None


def _either(
    options: Sequence[Pattern], graph: Graph, expr: Anything, state: _State
) -> Mismatch | None:
    return _first([lambda p=p: _match(p, graph, expr, state) for p in options], state)


def _first(attempts: Sequence[Anything], state: _State) -> Mismatch | None:
    """Make attempts until one succeeds; the state is that of the successful one."""
    before = dict(state.bound), list(state.members)
    furthest: Mismatch | None = None
    for attempt in attempts:
        failed = attempt()
        if failed is None:
            return None
        if furthest is None or failed.progress > furthest.progress:
            furthest = failed
        state.bound, state.members = dict(before[0]), list(before[1])
    return furthest
