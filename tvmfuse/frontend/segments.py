"""Cut a program into parts that can be compiled and parts that PyTorch has to run.

The parts run one after another; values pass between them by name. They take turns, and each takes
all operators that it can: first everything of one kind that is ready, then everything of the next
kind, and so on. A call of ``torch.cond`` is a part of its own: its branches are cut in the same
way, so that nothing is fused across their borders, and whatever runs the parts chooses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree as pytree

from tvmfuse.errors import ImportModelError, UnsupportedOperatorError
from tvmfuse.frontend.branches import (
    Source,
    is_choice,
    reason_against,
    results_of,
    source_of_branch,
    source_of_program,
)
from tvmfuse.frontend.part_order import CHOICE, COMPILED, EAGER, in_parts
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
class Branch:
    """What one side of a choice runs.

    Parameters
    ----------
    steps
        In the order in which they run.
    inputs
        Each name of a value inside, with the name that it has outside.
    outputs
        Names inside.
    """

    steps: tuple[Segment | Choice, ...]
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """A call of ``torch.cond``.

    Parameters
    ----------
    predicate
        Name of the value that decides; None where it is a constant.
    branches
        That of a true predicate and the other one; only one where the predicate is a constant.
    outputs
        Names of the values that it gives, in the order of each branch's own.
    place
        Where the user's code calls it.
    """

    predicate: str | None
    branches: tuple[Branch, ...]
    outputs: tuple[str, ...]
    place: str


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

    segments: tuple[Segment | Choice, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    signature: Signature
    draws: bool


def split(program: Any, parameters: tuple[str, ...], fallback: bool = True) -> Split:
    """Cut an exported program at choices, and at the operators that cannot be imported.

    Parameters
    ----------
    program
        The ``torch.export.ExportedProgram``; it is not changed.
    parameters
        Names of the positional parameters of ``forward``.
    fallback
        Whether PyTorch may run operators; otherwise they are refused.

    Raises
    ------
    UnsupportedOperatorError
        PyTorch would have to run operators, and may not.
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
    source = source_of_program(program)
    steps = _Cutter(fallback).cut(source)
    every = tuple(segments_of(steps))
    if not fallback:
        _refuse_eager(every)
    if not any(s.compiled for s in every):
        raise ImportModelError(
            "no part of the model can be compiled: every operator that computes is refused"
        )
    draws = any(
        torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        for module in program.graph_module.modules() if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
    )  # fmt: skip
    outputs = tuple(sink.name for sink in source.sinks)
    return Split(steps, source.inputs, outputs, signature, draws)


def segments_of(steps: Iterable[Segment | Choice]) -> Iterator[Segment]:
    """All segments, those of branches too."""
    for step in steps:
        if isinstance(step, Segment):
            yield step
        else:
            for branch in step.branches:
                yield from segments_of(branch.steps)


def _refuse_eager(segments: Iterable[Segment]) -> None:
    eager = [s for s in segments if not s.compiled]
    reasons = dict.fromkeys(r for s in eager for r in s.reasons)
    if eager:
        raise UnsupportedOperatorError(
            f"{len(reasons)} operator(s) cannot be imported:\n  " + "\n  ".join(reasons)
        )


class _Cutter:
    """Cuts graphs; ``fallback`` says whether PyTorch may run a part only because that pays."""

    def __init__(self, fallback: bool) -> None:
        self._fallback = fallback

    def cut(self, source: Source, predicate: str | None = None) -> tuple[Segment | Choice, ...]:
        """The steps of a graph; ``predicate`` is a value that every graph below a choice has."""
        eager = _eager_nodes(source)
        choices = self._choices(source, eager)
        kinds = _kinds(source, eager, choices)
        parts = in_parts(list(source.nodes), kinds)
        idle = [n for part, kind in parts if kind == COMPILED and _is_idle(part) for n in part]
        if idle and self._fallback:
            parts = in_parts(list(source.nodes), {**kinds, **dict.fromkeys(idle, EAGER)})
        spare = (*source.inputs, *([predicate] if predicate else ()))[:1]
        steps: list[Segment | Choice] = []
        for part, kind in parts:
            if kind == CHOICE:
                steps += [choices[node] for node in part if node in choices]
            else:
                steps.append(_segment(source, part, kind == COMPILED, eager, spare))
        return tuple(steps)

    def _choices(self, source: Source, eager: dict[fx.Node, str]) -> dict[fx.Node, Choice]:
        """Calls of ``torch.cond`` of which something can be compiled; others join ``eager``."""
        found = {}
        for node in [n for n in source.nodes if is_choice(n)]:
            reason = reason_against(node)
            if reason:
                eager[node] = reason
                continue
            choice = self._choice(source, node)
            within = [s.compiled for b in choice.branches for s in segments_of(b.steps)]
            if self._fallback and within and not any(within):
                eager[node] = "has branches of which nothing can be compiled"
            else:
                found[node] = choice
        return found

    def _choice(self, source: Source, node: fx.Node) -> Choice:
        predicate: Any = node.args[0]
        known = source.tensors.get(predicate.name)
        sides = (1, 2) if known is None else (1,) if bool(known) else (2,)
        branches = []
        for side in sides:
            inner, passed = source_of_branch(source, node, side)
            name = None
            if known is None and not passed:
                name = f"{predicate.name}_chosen"
                passed = ((name, predicate.name),)
            outputs = tuple(sink.name for sink in inner.sinks)
            branches.append(Branch(self.cut(inner, name), passed, outputs))
        results = results_of(node)
        return Choice(
            predicate.name if known is None else None,
            tuple(branches),
            tuple(results[index].name for index in sorted(results)),
            node_place(node),
        )


def _eager_nodes(source: Source) -> dict[fx.Node, str]:
    """Operators that PyTorch has to run, each with the reason.

    Besides the refused ones these are all that know their shapes at run time only.
    """
    known = set(source.nodes)
    found = {n: r for n, r in refusals(source.graph).items() if n in known and not is_choice(n)}
    for node in source.nodes:
        if node in found:
            continue
        values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
        if not all(_is_static(v) for v in pytree.tree_leaves(values)):
            found[node] = ""  # the operator that it comes from says why
    return found


def _kinds(
    source: Source, eager: dict[fx.Node, str], choices: dict[fx.Node, Choice]
) -> dict[fx.Node, str]:
    kinds: dict[fx.Node, str] = {}
    for node in source.nodes:
        if operator_name(node) == "getitem":
            # What takes an operator's results apart stays with it: only tensors cross borders.
            kinds[node] = kinds[node.args[0]]  # type: ignore[index]
        else:
            kinds[node] = CHOICE if node in choices else EAGER if node in eager else COMPILED
    return kinds


def _is_static(value: Any) -> bool:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    if isinstance(value, torch.Tensor):
        return all(isinstance(extent, int) for extent in value.shape)
    return True


def _is_idle(part: Iterable[fx.Node]) -> bool:
    return all(operator_name(node) in _MOVES for node in part)


def _segment(
    source: Source,
    part: list[fx.Node],
    compiled: bool,
    eager: dict[fx.Node, str],
    spare: tuple[str, ...],
) -> Segment:
    """One part as a module of its own, which holds the weights that it reads."""
    own = set(part)
    graph, root = fx.Graph(), torch.nn.Module()
    copied: dict[fx.Node, fx.Node] = {}
    inputs: list[str] = []
    read = dict.fromkeys(n for node in part for n in node.all_input_nodes if n not in own)
    for node in [n for n in read if n.op == "get_attr"]:  # the branches of torch.cond
        root.add_module(str(node.target), source.modules.get_submodule(str(node.target)))
        copied[node] = graph.get_attr(str(node.target))
    for node in [n for n in read if n.op != "get_attr" and n.name not in source.tensors]:
        copied[node] = graph.placeholder(node.name)
        copied[node].meta = dict(node.meta)
        inputs.append(node.name)
    if compiled and not inputs and spare:  # a compiled function takes something
        graph.placeholder(spare[0])
        inputs.append(spare[0])
    for node in [n for n in read if n.name in source.tensors]:
        name = f"w{len(copied)}"
        root.register_buffer(name, source.tensors[node.name])
        copied[node] = graph.get_attr(name)
    for node in part:
        copied[node] = graph.node_copy(node, lambda n: copied[n])
    others = set(source.nodes) - own
    wanted = [n for n in part if n in source.sinks or not others.isdisjoint(n.users)]
    graph.output(tuple(copied[n] for n in wanted))
    reasons = dict.fromkeys(f"{n.target} {eager[n]}: {node_place(n)}" for n in part if eager.get(n))
    return Segment(
        fx.GraphModule(root, graph).eval(),
        tuple(inputs),
        tuple(n.name for n in wanted),
        compiled,
        tuple(reasons),
        len(part),
    )
