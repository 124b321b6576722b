"""A program in simple operators, each distinct call taken apart once.

``ExportedProgram.run_decompositions`` traces the whole program twice and changes the dispatch of
all of PyTorch's composite operators for it, which takes three times as long as the export. Models
repeat themselves: here each distinct call (operator, constants, and shape, strides and type of its
tensors) is traced once, by the same machinery, and its operators are put in wherever it occurs;
most need no trace at all (`tvmfuse.frontend.simple_calls`). What this cannot do faithfully
(symbolic shapes, control flow, writes that other names of the same memory see) is left to PyTorch:
:func:`decompose` answers None.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch._aot_autograd.functional_utils import from_fun, to_fun
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.export._trace import _ignore_backend_decomps
from torch.export.exported_program import _override_composite_implicit_decomp
from torch.export.graph_signature import OutputKind
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import NodeSource, NodeSourceAction
from torch.utils import _pytree as pytree

from tvmfuse.frontend.aliases import rewritten
from tvmfuse.frontend.simple_calls import Table, filled, is_simple, simple_form

# Tracing a call may give other strides than the exported program knows, which are then given to
# the calls behind it; each round follows such a change through one more distinct call.
_ROUNDS = 12

Key = tuple[Any, ...]


@dataclass(frozen=True)
class _Part:
    """What one call becomes: nodes of another graph, in order."""

    inputs: list[fx.Node]
    nodes: list[fx.Node]
    result: Any


def decompose(program: Any, table: Table) -> Any:
    """Take ``program`` apart, or answer None where only PyTorch can.

    Parameters
    ----------
    program
        A ``torch.export.ExportedProgram``; it is not changed.
    table
        As ``ExportedProgram.run_decompositions`` would be given it.

    Returns
    -------
    ExportedProgram
        Functional, of the same inputs, outputs and values.
    """
    if not _is_plain(program):
        return None
    written = rewritten(program.graph)
    if written is None:
        return None
    parts: dict[Key, _Part] = {}
    for _ in range(_ROUNDS):
        missing, taken = _take_apart(program.graph, parts, written, table)
        if not missing:
            return _rebuilt(program, taken, written)
        try:
            traced = _traced(list(missing.values()), table)
        except Exception:  # many kinds: PyTorch's own way says what is wrong, and with which call
            return None
        if traced is None:
            return None
        parts.update(zip(missing, traced, strict=True))
    return None


def _is_plain(program: Any) -> bool:
    """Whether all calls are operators on tensors of known shape, and only results go out."""
    if any(s.kind is not OutputKind.USER_OUTPUT for s in program.graph_signature.output_specs):
        return False
    for node in program.graph.nodes:
        if node.op in ("get_attr", "call_module", "call_method"):
            return False
        if node.op == "call_function":
            if node.target is operator.getitem:
                continue
            if not isinstance(node.target, torch._ops.OpOverload):
                return False
            if node.target is not _ASSERTION and not _has_plain_results(node):
                return False
    return True


# Of types, which tracing has checked; it has no result.
_ASSERTION = torch.ops.aten._assert_tensor_metadata.default


def _has_plain_results(node: fx.Node) -> bool:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return bool(leaves) and all(
        isinstance(v, FakeTensor)
        and not v.is_complex()
        and v.layout is torch.strided
        and all(isinstance(s, int) for s in (*v.shape, *v.stride()))
        for v in leaves
    )


def _take_apart(
    graph: fx.Graph,
    parts: dict[Key, _Part],
    written: dict[fx.Node, list[fx.Node]],
    table: Table,
) -> tuple[dict[Key, Any], dict[fx.Node, _Part]]:
    """Distinct calls that have no part yet, each with its tensors, and the parts of all others.

    Calls in neither are simple. ``parts`` is given those that need no trace. Behind a call without
    a part the values are taken to be the exported program's own.
    """
    missing: dict[Key, Any] = {}
    taken: dict[fx.Node, _Part] = {}
    values: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.target is operator.getitem:
            values[node] = values[node.args[0]][node.args[1]]
        elif node.op == "call_function" and not _stays(node, values, table):
            key = _key(node, values)
            part = parts.get(key)
            if part is None and key not in missing:
                part = _direct(node, values, table)
                if part is not None:
                    parts[key] = part
            if part is None:
                values[node] = node.meta["val"]
                missing[key] = (node.target, *fx.node.map_arg((node.args, node.kwargs),
                                                              values.__getitem__))  # fmt: skip
            else:
                taken[node] = part
                inputs = dict(zip(part.inputs, _tensors(node), strict=True))
                values[node] = fx.node.map_arg(
                    part.result,
                    lambda n, seen=inputs: values[seen[n]] if n in seen else n.meta["val"],
                )
        else:
            values[node] = node.meta.get("val")
        for name in written.get(node, ()):
            values[name] = values[node]
    return missing, taken


def _stays(node: fx.Node, values: dict[fx.Node, Any], table: Table) -> bool:
    """Whether the call is simple, and its result the one that the exported program knows."""
    if node.target is _ASSERTION:
        return True
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return False  # the results of several are nodes of their own
    known = {n: n.meta.get("val") for n in node.all_input_nodes}
    if any(_frozen(n, values) != _frozen(n, known) for n in known):
        return False
    return is_simple(node.target, node.args, node.kwargs, table)


def _direct(node: fx.Node, values: dict[fx.Node, Any], table: Table) -> _Part | None:
    """The part of a call that becomes one simple call; None where a trace has to tell."""
    graph = fx.Graph()
    inputs = []
    for outer in _tensors(node):
        inputs.append(graph.placeholder("given"))
        inputs[-1].meta["val"] = values[outer]
    mode = next((i.meta["val"].fake_mode for i in inputs), None)
    if mode is None:
        return None
    rest = iter(inputs)
    args, kwargs = pytree.tree_map(
        lambda a: next(rest) if isinstance(a, fx.Node) else a, (node.args, node.kwargs)
    )
    form = simple_form(node.target, args, kwargs, table)
    if form is None:
        return None
    if form.target is None:
        return _Part(inputs, [], form.args[0])
    call = graph.call_function(form.target, form.args, form.kwargs)
    with torch.no_grad(), mode:
        call.meta["val"] = form.target(*filled(form.args), **filled(form.kwargs))
    if form.pick is None:
        result = call
        if not isinstance(call.meta["val"], torch.Tensor):
            return None
    else:
        result = graph.call_function(operator.getitem, (call, form.pick))
        result.meta["val"] = call.meta["val"][form.pick]
    if node.target._schema.is_mutable:
        into, value = _layout(inputs[0].meta["val"]), _layout(result.meta["val"])
        if into != value:
            return None  # it is converted on its way into the first argument
    return _Part(inputs, [call] if result is call else [call, result], result)


def _key(node: fx.Node, values: dict[fx.Node, Any]) -> Key:
    return (node.target, _frozen(node.args, values), _frozen(node.kwargs, values))


def _frozen(value: Any, values: dict[fx.Node, Any]) -> Any:
    if isinstance(value, fx.Node):
        return _frozen(values[value], values)
    if isinstance(value, torch.Tensor):
        return _layout(value)
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, *(_frozen(v, values) for v in value))
    if isinstance(value, dict):
        return tuple((k, _frozen(v, values)) for k, v in value.items())
    return (type(value), repr(value))  # 1, 1.0 and True are equal, and NaN is not


def _layout(value: torch.Tensor) -> Key:
    return (value.shape, value.stride(), value.dtype, value.device)


def _tensors(node: fx.Node) -> list[fx.Node]:
    """Tensors among the arguments, each as often as it stands there."""
    return [a for a in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(a, fx.Node)]


def _traced(calls: list[Any], table: Table) -> list[_Part] | None:
    """Take calls apart, all in one trace: their graphs do not touch."""
    flat = [pytree.tree_flatten((args, kwargs)) for _, args, kwargs in calls]
    given = [v for leaves, _ in flat for v in leaves if isinstance(v, torch.Tensor)]
    mode = next((v.fake_mode for v in given if isinstance(v, FakeTensor)), None)
    if mode is None:
        return None

    def run(*tensors: torch.Tensor) -> list[Any]:
        rest = iter(tensors)
        results = []
        for (target, _, _), (leaves, spec) in zip(calls, flat, strict=True):
            filled = [to_fun(next(rest)) if isinstance(v, torch.Tensor) else v for v in leaves]
            args, kwargs = pytree.tree_unflatten(filled, spec)
            results.append(pytree.tree_map(from_fun, target(*args, **kwargs)))
        return results

    with _tracing(mode, table):
        # A tensor of its own for each argument: the trace knows them by identity.
        fresh = [
            torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device) for v in given
        ]
        with enable_python_dispatcher(), FunctionalTensorMode(export=True):
            graph = make_fx(run, decomposition_table=table.simple)(*fresh).graph
    return _split(graph, [sum(isinstance(v, torch.Tensor) for v in leaves) for leaves, _ in flat])


@contextlib.contextmanager
def _tracing(mode: Any, table: Table) -> Iterator[None]:
    """The state that PyTorch's own decomposing is in."""
    with (
        torch.no_grad(),
        mode,
        _ignore_backend_decomps(),
        _override_composite_implicit_decomp(table.composite),
    ):
        yield


def _split(graph: fx.Graph, counts: list[int]) -> list[_Part] | None:
    """The part of each call; None if one needs a constant of the trace."""
    placeholders = iter(graph.find_nodes(op="placeholder"))
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    place = {node: number for number, node in enumerate(graph.nodes)}
    parts = []
    for count, result in zip(counts, output.args[0], strict=True):
        inputs = [next(placeholders) for _ in range(count)]
        found: dict[fx.Node, None] = {}
        waiting = [v for v in pytree.tree_leaves(result) if isinstance(v, fx.Node)]
        while waiting:
            node = waiting.pop()
            if node.op == "get_attr":
                return None
            if node.op != "placeholder" and node not in found:
                found[node] = None
                waiting += node.all_input_nodes
        parts.append(_Part(inputs, sorted(found, key=place.__getitem__), result))
    return parts


def _rebuilt(
    program: Any, taken: dict[fx.Node, _Part], written: dict[fx.Node, list[fx.Node]]
) -> Any:
    """The program with the parts in place of its calls."""
    graph = fx.Graph()
    made: dict[fx.Node, Any] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is operator.getitem:
            whole, index = node.args
            stayed = isinstance(made[whole], fx.Node)  # kept, with several results
            made[node] = graph.node_copy(node, made.__getitem__) if stayed else made[whole][index]
        elif node in taken:
            made[node] = _inlined(graph, node, taken[node], made)
        else:
            made[node] = graph.node_copy(node, made.__getitem__)
            if node.op == "placeholder":
                made[node].name = node.name  # also where a graph would not choose it: "input"
        for name in written.get(node, ()):
            made[name] = made[node]
    graph.eliminate_dead_code()
    return _program(program, graph)


def _inlined(graph: fx.Graph, node: fx.Node, part: _Part, made: dict[fx.Node, Any]) -> Any:
    here: dict[fx.Node, fx.Node] = {
        inner: made[outer] for inner, outer in zip(part.inputs, _tensors(node), strict=True)
    }
    source = NodeSource(node, "decompose", NodeSourceAction.CREATE)
    for inner in part.nodes:
        here[inner] = graph.node_copy(inner, here.__getitem__)
        here[inner].meta = {
            **{k: node.meta[k] for k in _PLACE if k in node.meta},
            "val": inner.meta["val"],
            "from_node": [source],
        }
    return fx.node.map_arg(part.result, here.__getitem__)


_PLACE = ("stack_trace", "nn_module_stack", "torch_fn", "custom")


def _program(program: Any, graph: fx.Graph) -> Any:
    """``program`` with another graph of the same inputs and outputs."""
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    renamed: dict[str, str] = {}

    def new(argument: Any) -> Any:
        """An argument by its new name; others are nobody's to change, and stay."""
        name = renamed.get(getattr(argument, "name", ""))
        return argument if name is None else dataclasses.replace(argument, name=name)

    given = program.graph_signature
    outputs = []
    for spec, value in zip(given.output_specs, output.args[0], strict=True):
        if isinstance(value, fx.Node):
            renamed[spec.arg.name] = value.name
        outputs.append(dataclasses.replace(spec, arg=new(spec.arg)))
    inputs = [dataclasses.replace(spec) for spec in given.input_specs]
    calls = [
        dataclasses.replace(entry, signature=entry.signature and dataclasses.replace(
            entry.signature, outputs=[new(a) for a in entry.signature.outputs]))
        for entry in program.module_call_graph
    ]  # fmt: skip
    return torch.export.ExportedProgram(
        root=torch.nn.Module(),
        graph=graph,
        graph_signature=dataclasses.replace(given, input_specs=inputs, output_specs=outputs),
        state_dict=program.state_dict,
        range_constraints={},
        module_call_graph=calls,
        example_inputs=program.example_inputs,
        constants=program.constants,
    )
