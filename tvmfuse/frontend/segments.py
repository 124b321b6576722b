"""Cut a program into parts that can be compiled and parts that PyTorch has to run.

The parts run one after another; values pass between them by name. They alternate, and each takes
all operators that it can: first everything of one kind that is ready, then everything of the other
kind, and so on. Whichever kind begins, no other order has fewer borders.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from tvmfuse.errors import ImportModelError
from tvmfuse.frontend.rewriting import operator_name
from tvmfuse.frontend.torch_export import functional, node_place, refusals
from tvmfuse.frontend.trees import signature_of
from tvmfuse.signature import Signature

# A compiled part of these alone would only add two borders.
_MOVES = frozenset(
    ("getitem", "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "squeeze",
     "unsqueeze", "slice", "select", "alias", "clone", "_to_copy", "full", "scalar_tensor",
     "arange", "detach", "lift_fresh_copy")
)  # fmt: skip
_TENSORS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass(frozen=True)
class Segment:
    """One part of a program.

    Parameters
    ----------
    module
        The part as a module that PyTorch can run; it returns a tuple.
    inputs, outputs
        Names of the values that it takes and returns.
    compiled
        Whether it can be compiled; otherwise PyTorch runs it.
    reasons
        Why not, one line for each operator with where the user's code calls it.
    operators
        How many operators it has.
    """

    module: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    compiled: bool
    reasons: tuple[str, ...]
    operators: int


@dataclass(frozen=True)
class Split:
    """A program in parts.

    Parameters
    ----------
    segments
        In the order in which they run.
    inputs
        Names of the flat input tensors.
    outputs
        Names of the flat output values; the signature's tree holds the constants.
    signature
        Of the whole; an extent that depends on values is -1.
    draws
        Whether any part draws random numbers.
    """

    segments: tuple[Segment, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    signature: Signature
    draws: bool


def split(program: Any, parameters: tuple[str, ...]) -> Split:
    """Cut an exported program at the operators that cannot be imported.

    Parameters
    ----------
    program
        The ``torch.export.ExportedProgram``; it is not changed.
    parameters
        Names of the positional parameters of ``forward``.

    Raises
    ------
    ImportModelError
        The program changes buffers or inputs, or no operator of it can be compiled.
    """
    signature = signature_of(program, parameters)
    program = functional(program)
    changed = [
        s.target for s in program.graph_signature.output_specs
        if s.kind is not OutputKind.USER_OUTPUT
    ]  # fmt: skip
    if changed:
        raise ImportModelError(
            f"the model changes {', '.join(map(repr, changed))} while it runs; a model that is "
            "compiled in parts keeps no state between calls"
        )
    eager = _eager_nodes(program)
    parts = _scheduled(program, eager)
    idle = {n: "only moves data" for part, compiled in parts if compiled and _is_idle(part)
            for n in part}  # fmt: skip
    if idle:
        parts = _scheduled(program, {**idle, **eager})
    if not any(compiled for _, compiled in parts):
        raise ImportModelError(
            "no part of the model can be compiled: every operator that computes is refused"
        )
    sinks = _user_outputs(program)
    segments = tuple(_segment(program, part, compiled, eager, sinks) for part, compiled in parts)
    sources = tuple(
        s.arg.name for s in program.graph_signature.input_specs
        if s.kind is InputKind.USER_INPUT and not isinstance(s.arg, ConstantArgument)
    )  # fmt: skip
    draws = any(
        torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())
        for n in program.graph.nodes
    )
    return Split(segments, sources, sinks, signature, draws)


def _user_outputs(program: Any) -> tuple[str, ...]:
    return tuple(
        s.arg.name for s in program.graph_signature.output_specs
        if not isinstance(s.arg, ConstantArgument)
    )  # fmt: skip


def _eager_nodes(program: Any) -> dict[fx.Node, str]:
    """Operators that PyTorch has to run, each with the reason.

    Besides the refused ones these are all that know their shapes at run time only.
    """
    found = refusals(program)
    for node in program.graph.nodes:
        if node.op != "call_function" or node in found:
            continue
        values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
        if not all(_is_static(v) for v in pytree.tree_leaves(values)):
            found[node] = "has a shape that depends on values"
    return found


def _is_static(value: Any) -> bool:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    if isinstance(value, torch.Tensor):
        return all(isinstance(extent, int) for extent in value.shape)
    return True


def _scheduled(program: Any, eager: dict[fx.Node, str]) -> list[tuple[list[fx.Node], bool]]:
    """Parts in order, and whether each is compiled; of both beginnings the one with fewer parts."""
    ways = [_alternating(program, eager, first) for first in (True, False)]
    return min(ways, key=len)


def _alternating(
    program: Any, eager: dict[fx.Node, str], compiled: bool
) -> list[tuple[list[fx.Node], bool]]:
    pending = [n for n in program.graph.nodes if n.op == "call_function"]
    kinds: dict[fx.Node, bool] = {}
    for node in pending:
        # What takes an operator's results apart stays with it: only tensors cross borders.
        whole = operator_name(node) == "getitem"
        kinds[node] = kinds[node.args[0]] if whole else node not in eager
    parts: list[tuple[list[fx.Node], bool]] = []
    waiting = set(pending)
    while pending:
        part = []
        for node in pending:
            if kinds[node] == compiled and not waiting & set(node.all_input_nodes):
                part.append(node)
                waiting.discard(node)
        if part:
            parts.append((part, compiled))
        pending = [n for n in pending if n in waiting]
        compiled = not compiled
    return parts


def _is_idle(part: Iterable[fx.Node]) -> bool:
    return all(operator_name(node) in _MOVES for node in part)


def _segment(
    program: Any,
    part: list[fx.Node],
    compiled: bool,
    eager: dict[fx.Node, str],
    sinks: tuple[str, ...],
) -> Segment:
    """One part as a module of its own, which holds the weights that it reads."""
    own = set(part)
    tensors = {
        s.arg.name: s.target for s in program.graph_signature.input_specs if s.kind in _TENSORS
    }
    graph, root = fx.Graph(), torch.nn.Module()
    copied: dict[fx.Node, fx.Node] = {}
    inputs: list[str] = []
    read = dict.fromkeys(n for node in part for n in node.all_input_nodes if n not in own)
    for node in [n for n in read if n.op == "get_attr"]:  # the branches of torch.cond
        root.add_module(str(node.target), program.graph_module.get_submodule(str(node.target)))
        copied[node] = graph.get_attr(str(node.target))
    for node in [n for n in read if n.op != "get_attr" and n.name not in tensors]:
        copied[node] = graph.placeholder(node.name)
        copied[node].meta = dict(node.meta)
        inputs.append(node.name)
    for node in [n for n in read if n.name in tensors]:
        name = f"w{len(copied)}"
        root.register_buffer(name, _tensor_of(program, tensors[node.name]))
        copied[node] = graph.get_attr(name)
    for node in part:
        copied[node] = graph.node_copy(node, lambda n: copied[n])
    wanted = [n for n in part if n.name in sinks or any(user not in own for user in n.users)]
    graph.output(tuple(copied[n] for n in wanted))
    refused = refusals(program)
    reasons = dict.fromkeys(
        f"{n.target} {refused[n]}: {node_place(n)}" for n in part if n in refused
    )
    return Segment(
        fx.GraphModule(root, graph).eval(),
        tuple(inputs),
        tuple(n.name for n in wanted),
        compiled,
        tuple(reasons),
        len(part),
    )


def _tensor_of(program: Any, target: str) -> torch.Tensor:
    found = program.state_dict.get(target)
    value = program.constants[target] if found is None else found
    return value.detach()
