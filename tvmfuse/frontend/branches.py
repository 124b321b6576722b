"""``torch.cond``: what its branches read and return, as graphs that can be cut like the program."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import ConstantArgument, InputKind

from tvmfuse.frontend.assertions import is_assertion
from tvmfuse.frontend.rewriting import call_before

_TENSORS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
# Values that cross borders are never written to, so that a copy is as good as its source.
_COPIES = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("clone", "alias", "detach", "lift_fresh_copy")
)


@dataclass(frozen=True)
class Source:
    """A graph to cut: the program's own, or that of a branch.

    Parameters
    ----------
    graph
        Functional, of simple operators.
    modules
        Holds the graphs of its branches by name.
    tensors
        Weights and other constants by the name of their placeholder.
    inputs
        Names of the other placeholders that are tensors.
    sinks
        The values that it returns.
    nodes
        The calls that it takes to make them, in order.
    """

    graph: fx.Graph
    modules: torch.nn.Module
    tensors: dict[str, torch.Tensor]
    inputs: tuple[str, ...]
    sinks: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]


def source_of_program(program: Any) -> Source:
    """The whole of a functional ``torch.export.ExportedProgram``."""
    signature = program.graph_signature
    tensors, inputs = {}, []
    for spec in signature.input_specs:
        if spec.kind in _TENSORS:
            stored = program.state_dict.get(spec.target)
            value = program.constants[spec.target] if stored is None else stored
            tensors[spec.arg.name] = value.detach()
        elif not isinstance(spec.arg, ConstantArgument):
            inputs.append(spec.arg.name)
    names = [s.arg.name for s in signature.output_specs if not isinstance(s.arg, ConstantArgument)]
    nodes = {n.name: n for n in program.graph.nodes}
    sinks = _copied(program.graph, [nodes[name] for name in names], tensors)
    calls = tuple(n for n in program.graph.nodes if n.op == "call_function")
    return Source(program.graph, program.graph_module, tensors, tuple(inputs), sinks, calls)


def is_choice(node: fx.Node) -> bool:
    """Whether a node is a call of ``torch.cond``."""
    return node.target is torch.ops.higher_order.cond


def chooses(program: Any) -> bool:
    """Whether an exported program chooses between branches while it runs."""
    return any(map(is_choice, program.graph.nodes))


def reason_against(node: fx.Node) -> str:
    """Why a call of ``torch.cond`` cannot be left to what drives the parts, or nothing."""
    predicate: Any = node.args[0]
    operands: Any = node.args[3]
    if not isinstance(predicate, fx.Node) or not isinstance(_value(predicate), torch.Tensor):
        return "chooses by a value that is no tensor"
    values = [_value(o) if isinstance(o, fx.Node) else o for o in operands]
    if not all(isinstance(v, torch.Tensor) for v in values):
        return "passes numbers to its branches; pass tensors"
    if not all(isinstance(v, torch.Tensor) for v in node.meta["val"]):
        return "has branches that return numbers; return tensors"
    return ""


def _value(node: fx.Node) -> Any:
    return node.meta.get("val")


def results_of(node: fx.Node) -> dict[int, fx.Node]:
    """What takes the results of a call apart, by number; only what is used."""
    return {
        int(user.args[1]): user for user in node.users  # type: ignore[call-overload]
        if user.target is operator.getitem
    }  # fmt: skip


def source_of_branch(
    outer: Source, node: fx.Node, which: int
) -> tuple[Source, tuple[tuple[str, str], ...]]:
    """A branch of ``torch.cond`` with the weights that it is given.

    Parameters
    ----------
    outer
        What holds the call.
    node
        The call.
    which
        1 for the branch of a true predicate, 2 for the other.

    Returns
    -------
    Source
        Its inputs are the operands that are no weights; its sinks the results that are used.
    tuple of (str, str)
        Each of its inputs with the name of the value outside.
    """
    module = outer.modules.get_submodule(str(node.args[which].target))  # type: ignore[union-attr]
    graph = module.graph
    operands: Any = node.args[3]
    tensors, passed = {}, []
    for place, operand in zip(graph.find_nodes(op="placeholder"), operands, strict=True):
        if operand.name in outer.tensors:
            tensors[place.name] = outer.tensors[operand.name]
        else:
            passed.append((place.name, operand.name))
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    wanted = [_original(output.args[0][index]) for index in sorted(results_of(node))]
    sinks = _copied(graph, wanted, tensors)
    source = Source(
        graph, module, tensors, tuple(name for name, _ in passed), sinks, _needed(graph, sinks)
    )
    return source, tuple(passed)


def _original(node: fx.Node) -> fx.Node:
    while node.target in _COPIES:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _copied(
    graph: fx.Graph, values: list[fx.Node], tensors: dict[str, torch.Tensor]
) -> tuple[fx.Node, ...]:
    """The values; a weight that is returned as it is becomes the result of an operator."""
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    return tuple(
        call_before(output, torch.ops.aten.clone.default, v) if v.name in tensors else v
        for v in values
    )


def _needed(graph: fx.Graph, sinks: tuple[fx.Node, ...]) -> tuple[fx.Node, ...]:
    found: set[fx.Node] = set()
    waiting = [*sinks, *filter(is_assertion, graph.nodes)]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return tuple(n for n in graph.nodes if n in found and n.op == "call_function")
