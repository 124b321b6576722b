"""Indices: PyTorch raises an error for one outside of its tensor, a kernel would read there.

An index that is an argument of the model is checked before the call. One that is computed is
clamped where it is used, and one output more tells whether that changed it; one whose range is
known to fit is left alone. Assertions of the model join these outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

from tvmfuse.frontend.assertions import take_assertions
from tvmfuse.frontend.constants import ConstantFolder
from tvmfuse.frontend.locate import node_location
from tvmfuse.frontend.rewriting import call_before, operator_name
from tvmfuse.signature import IndexBound

_ATEN = torch.ops.aten

# Every element of their first argument is in the result, and nothing else.
_MOVES = frozenset(
    ("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "expand", "permute", "transpose",
     "t", "clone", "alias", "repeat", "flip", "roll", "lift_fresh_copy", "contiguous")
)  # fmt: skip
# A part of the elements of their first argument is in the result, and nothing else.
_PARTS = frozenset(("slice", "select", "gather", "index_select", "narrow", "diagonal"))

_ALONG = ("gather", "scatter", "scatter_add", "scatter_reduce", "index_select")

# Their decompositions end in the least of the places where the extremum is, which is somewhere.
_EXTREMA = frozenset(("aten.argmax.default", "aten.argmin.default", "aten.max.dim", "aten.min.dim"))

# Its decomposition compares each index with all places: PyTorch's own checks are lost there.
_ONE_HOT = "aten.one_hot.default"

Range = tuple[int, int]  # both ends included


class _Use(NamedTuple):
    """An index of an operator: where it stands, and what it may be: low <= index < high."""

    place: tuple[int, ...]
    index: fx.Node
    low: int
    high: int


def guard_indices(program: Any, states: int) -> tuple[tuple[IndexBound, ...], tuple[str, ...]]:
    """Find indices that may lie outside, in place.

    Parameters
    ----------
    program
        A functional ``torch.export.ExportedProgram`` before :func:`normalize`.
    states
        Inputs and outputs before the user's.

    Returns
    -------
    bounds
        What the arguments of the model must satisfy.
    checks
        What is wrong if the int32 at this place among the outputs behind the states is not 0.
    """
    ranges = _Ranges(program)
    positions = _positions(program, states)
    bounds: dict[IndexBound, None] = {}
    flags: dict[tuple[fx.Node, int, int], tuple[fx.Node, fx.Node, str]] = {}
    for node in list(program.graph.nodes):
        for use in _uses(node):
            if use.index.meta["val"].numel() == 0 or ranges.within(use.index, use.low, use.high):
                continue
            what = (
                f"{_called(node)} of {use.high} entries at "
                f"{node_location(node.meta.get('stack_trace'))}"
            )
            source = _moved(use.index)
            if source in positions:
                bounds[IndexBound(positions[source], use.low, use.high, what)] = None
                continue
            key = (use.index, use.low, use.high)
            if key not in flags:
                flags[key] = (*_clamped(node, use), what)
            _put(node, use.place, flags[key][0])
    found = [
        (flag, f"a computed index of {what} is not in {low} .. {high - 1}")
        for (_, low, high), (_, flag, what) in flags.items()
    ]
    found += take_assertions(program)
    _outputs(program, states, [flag for flag, _ in found])
    return tuple(bounds), tuple(message for _, message in found)


def _positions(program: Any, states: int) -> dict[fx.Node, int]:
    """Number of each tensor among the user's arguments."""
    specs = [
        spec
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT and not isinstance(spec.arg, ConstantArgument)
    ]
    nodes = {n.name: n for n in program.graph.find_nodes(op="placeholder")}
    return {nodes[spec.arg.name]: number for number, spec in enumerate(specs[states:])}


def _uses(node: fx.Node) -> Iterator[_Use]:
    name = operator_name(node) if node.op == "call_function" else ""
    if name == "embedding":
        yield from _use(node, (1,), 0, 0)
    elif name in ("index", "index_put"):
        indices: Any = node.args[1]
        masks = (torch.bool, torch.uint8)
        for index in indices:
            if isinstance(index, fx.Node) and index.meta["val"].dtype in masks:
                return  # a mask takes as many axes as it has, and its shape was checked
        for axis in range(len(indices)):
            yield from _use(node, (1, axis), axis, None)
    elif name == "eq" and _taken_apart(node) == _ONE_HOT:
        places: Any = node.args[0]
        yield _Use((0,), places, 0, int(node.meta["val"].shape[-1]))
    elif name in _ALONG:
        yield from _use(node, (2,), node.args[1], 0)


def _use(node: fx.Node, place: tuple[int, ...], axis: Any, low: int | None) -> Iterator[_Use]:
    index: Any = node.args
    for step in place:
        index = index[step]
    if isinstance(index, fx.Node):
        shape = node.args[0].meta["val"].shape  # type: ignore[union-attr]
        extent = int(shape[axis]) if len(shape) else 1
        yield _Use(place, index, -extent if low is None else low, extent)


def _moved(node: fx.Node) -> fx.Node:
    """The node whose elements, all of them, are those of ``node``."""
    while node.op == "call_function" and (operator_name(node) in _MOVES or _widens(node)):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _widens(node: fx.Node) -> bool:
    if operator_name(node) not in ("_to_copy", "to"):
        return False
    source: Any = node.args[0]
    narrow, wide = source.meta["val"].dtype, node.meta["val"].dtype
    if narrow.is_floating_point or wide.is_floating_point or torch.bool in (narrow, wide):
        return narrow == wide
    return bool(torch.promote_types(narrow, wide) == wide)


def _clamped(node: fx.Node, use: _Use) -> tuple[fx.Node, fx.Node]:
    inside = call_before(node, _ATEN.clamp.default, use.index, use.low, use.high - 1)
    moved = call_before(node, _ATEN.ne.Tensor, use.index, inside)
    flags = call_before(node, _ATEN._to_copy.default, moved, dtype=torch.int32)
    rank = flags.meta["val"].ndim
    return inside, call_before(
        node, _ATEN.amax.default, flags, list(range(rank))
    ) if rank else flags


def _put(node: fx.Node, place: tuple[int, ...], value: fx.Node) -> None:
    args = list(node.args)
    if len(place) == 1:
        args[place[0]] = value
    else:
        many = list(args[place[0]])  # type: ignore[arg-type]
        many[place[1]] = value
        args[place[0]] = many
    node.args = tuple(args)


def _outputs(program: Any, states: int, flags: list[fx.Node]) -> None:
    output = next(n for n in reversed(program.graph.nodes) if n.op == "output")
    values = list(output.args[0])
    output.args = ((*values[:states], *flags, *values[states:]),)
    program.graph_signature.output_specs[states:states] = [
        OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(flag.name), None) for flag in flags
    ]


class _Ranges:
    """Which values integer nodes can have, as far as the graph says so."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self._folder = ConstantFolder(program)
        self._known: dict[fx.Node, Range | None] = {}

    def within(self, node: fx.Node, low: int, high: int) -> bool:
        """Whether all values lie in ``low <= value < high``."""
        found = self.of(node)
        return found is not None and low <= found[0] and found[1] < high

    def of(self, node: fx.Node) -> Range | None:
        """Least and largest value; None where nothing is known."""
        if node not in self._known:
            self._known[node] = self._constant(node) or self._computed(node)
        return self._known[node]

    def _constant(self, node: fx.Node) -> Range | None:
        needed: dict[fx.Node, None] = {}
        waiting = [node]
        while waiting:
            each = waiting.pop()
            if each not in needed:
                needed[each] = None
                waiting += each.all_input_nodes
        value = None
        for each in (n for n in self._program.graph.nodes if n in needed):
            argument = each.op != "call_function" and not self._folder.knows(each)
            value = None if argument else self._folder.fold(each)
            if value is None:
                return None
        if not isinstance(value, torch.Tensor) or value.is_floating_point() or not value.numel():
            return None
        return int(value.min()), int(value.max())

    def _computed(self, node: fx.Node) -> Range | None:
        if node.op != "call_function":
            return None
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
            return 0, 1
        name = operator_name(node)
        if name in _MOVES or name in _PARTS or _widens(node) or _from_bool(node):
            return self.of(node.args[0])  # type: ignore[arg-type]
        if name == "clamp":
            return self._clamp(node)
        if name == "remainder" and isinstance(node.args[1], int) and node.args[1] > 0:
            return 0, node.args[1] - 1
        if name == "where":
            return _joined(self._operand(node.args[1]), self._operand(node.args[2]))
        if name == "amin" and _taken_apart(node) in _EXTREMA:
            dims: Any = node.args[1] if len(node.args) > 1 else None
            return _place(node.args[0], dims[0] if dims else None)
        if name == "getitem" and node.args[1] == 1:
            return _chosen(node.args[0])
        if name in ("add", "sub") and not node.kwargs and len(node.args) == 2:
            one, other = (self._operand(a) for a in node.args)
            if one is None or other is None:
                return None
            low, high = other if name == "add" else (-other[1], -other[0])
            return one[0] + low, one[1] + high
        return None

    def _operand(self, operand: Any) -> Range | None:
        if isinstance(operand, fx.Node):
            return self.of(operand)
        return (operand, operand) if isinstance(operand, int) else None

    def _clamp(self, node: fx.Node) -> Range | None:
        value = node.args[0].meta["val"]  # type: ignore[union-attr]
        limits = [*node.args[1:], None, None][:2]
        low, high = (node.kwargs.get(n, at) for n, at in zip(("min", "max"), limits, strict=True))
        if value.is_floating_point() or not isinstance(low, int) or not isinstance(high, int):
            return None  # of floats, NaN comes through
        return low, high


def _from_bool(node: fx.Node) -> bool:
    if operator_name(node) != "_to_copy":
        return False
    source: Any = node.args[0]
    return source.meta["val"].dtype == torch.bool and not node.meta["val"].is_floating_point()


def _joined(one: Range | None, other: Range | None) -> Range | None:
    if one is None or other is None:
        return None
    return min(one[0], other[0]), max(one[1], other[1])


def _place(source: Any, dim: Any) -> Range:
    value = source.meta["val"]
    extent = value.numel() if dim is None or not value.ndim else value.shape[dim]
    return 0, int(extent) - 1


def _called(node: fx.Node) -> str:
    return "one_hot" if _taken_apart(node) == _ONE_HOT else operator_name(node)


def _taken_apart(node: fx.Node) -> str:
    """The operator of the exported program that ``node`` is a part of."""
    sources = node.meta.get("from_node") or ()
    return str(sources[0].target) if sources else ""


def _chosen(call: Any) -> Range | None:
    """Places along a dimension that sorting operators return."""
    dims = {"topk": 2, "sort": 1}
    name = operator_name(call)
    if name not in dims or call.target is _ATEN.sort.stable:
        return None
    at = dims[name]
    return _place(call.args[0], call.args[at] if len(call.args) > at else -1)
