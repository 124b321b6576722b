"""From an ONNX graph to an :class:`OnnxModule`.

The graph runs once, node by node, on the example inputs. What depends on no input (but on its
shape) is known after that and leaves no step behind: arithmetic on shapes, branches, loop counts.
"""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from collections.abc import Mapping
from typing import Any

import onnx
import torch

from tvmfuse.errors import ImportModelError, UnsupportedOperatorError
from tvmfuse.frontend.onnx import carried, control, functions
from tvmfuse.frontend.onnx.call import Call, Refusal, UnknownInput
from tvmfuse.frontend.onnx.module import OnnxModule, OnnxNode
from tvmfuse.frontend.onnx.operators import DATA_DEPENDENT, OPERATORS, OUT_OF_SCOPE
from tvmfuse.frontend.onnx.tensors import as_array, attribute_value, constant

# How many inputs an operator reads the values of, if not all: of others only shape or type.
_READ = {"Shape": 0, "Size": 0, "EyeLike": 0, "CastLike": 1, "OptionalHasElement": 0}


@dataclasses.dataclass(eq=False)
class Value:
    """A tensor, a sequence of tensors or nothing, with its example value.

    ``sources`` are the model's inputs that it depends on, ``kind`` is the element type where
    another one carries it. A value that is known may be ``computed`` all the same, by a step: the
    weight of a quantised operator, which is stored in bytes.
    """

    number: int
    data: Any
    sources: frozenset[str] = frozenset()
    kind: int | None = None
    computed: bool = False

    @property
    def known(self) -> bool:
        """Whether no input of the model changes it."""
        return not self.sources


Scope = ChainMap[str, Value]
Steps = list[tuple[OnnxNode, "list[Value | None]", "list[Value]"]]


class FixedInputError(ImportModelError):
    """Inputs of the model decide shapes, or the path: ``names`` are they."""

    def __init__(self, names: frozenset[str], message: str) -> None:
        self.names = names
        super().__init__(message)


def module_of(
    model: onnx.ModelProto,
    example_inputs: Mapping[str, torch.Tensor],
    fixed: Mapping[str, torch.Tensor] | None = None,
) -> OnnxModule:
    """Turn a model into a module for the shapes of the example inputs.

    Parameters
    ----------
    model
        With its weights in memory and its local functions inlined.
    example_inputs
        By name; the module takes them in this order.
    fixed
        Inputs that are constants from now on, by name.

    Raises
    ------
    UnsupportedOperatorError
        Operators that are not known: all of them, with their nodes.
    ImportModelError
        A node cannot be imported; the message names it.
    """
    planner = Planner({o.domain or "": o.version for o in model.opset_import})
    scope: Scope = ChainMap()
    for name, tensor in example_inputs.items():
        scope[name] = planner.value(tensor, frozenset((name,)))
    for name, tensor in (fixed or {}).items():
        scope[name] = planner.value(tensor)
    for given in model.graph.input:
        if given.name in scope:
            scope[given.name] = planner.enter(given, scope[given.name])
    planner.refuse_unsupported(model.graph)
    with torch.no_grad():
        outputs = planner.run(model.graph, scope)
    return planner.finish(list(example_inputs), outputs)


class Planner:
    """Runs a graph and keeps the steps that depend on its inputs."""

    def __init__(self, opsets: dict[str, int]) -> None:
        self.opsets = opsets
        self.values: list[Value] = []
        self.nodes: Steps = []

    def value(
        self, data: Any, sources: frozenset[str] = frozenset(), kind: int | None = None
    ) -> Value:
        """A new value."""
        self.values.append(Value(len(self.values), data, sources, kind))
        return self.values[-1]

    def enter(self, given: onnx.ValueInfoProto, value: Value) -> Value:
        """An input of the model, as the graph carries it."""
        kind = given.type.tensor_type.elem_type
        if kind not in carried.KINDS:
            return value
        what = f"input {given.name!r}"
        return self._step(what, value, lambda call, x: carried.enter(x, kind), kind)

    def _step(self, what: str, value: Value, function: Any, kind: int | None) -> Value:
        made = self.value(function(None, value.data), value.sources, kind)
        if value.sources:
            self.nodes.append((OnnxNode(Call("Cast", what, 0, {}), function), [value], [made]))
        return made

    def refuse_unsupported(self, graph: onnx.GraphProto) -> None:
        """Raise UnsupportedOperatorError for all operators of the graph that are not known."""
        reasons: dict[str, list[str]] = {}
        for node in _all_nodes(graph):
            why = self._reason(node)
            if why:
                reasons.setdefault(f"{_operator(node)} {why}", []).append(place(node))
        if reasons:
            lines = [
                f"  {what}\n    {', '.join(places[:3])}"
                + (f" (and {len(places) - 3} more nodes)" if len(places) > 3 else "")
                for what, places in reasons.items()
            ]
            raise UnsupportedOperatorError(
                f"{len(reasons)} ONNX operator(s) cannot be imported:\n" + "\n".join(lines)
            )

    def _reason(self, node: onnx.NodeProto) -> str:
        if node.domain not in ("", "ai.onnx"):
            return "is of a domain without converters"
        if node.op_type in OUT_OF_SCOPE:
            return OUT_OF_SCOPE[node.op_type]
        changed = functions.changed_since(node, self.opsets.get("", 1))
        if changed:
            return changed
        known = node.op_type in OPERATORS or node.op_type in control.OPERATORS
        if known or node.op_type in DATA_DEPENDENT or functions.has_body(node, self.opsets):
            return ""
        return "has no converter"

    def run(self, graph: onnx.GraphProto, scope: Scope) -> list[Value]:
        """Run a graph in a scope that has its inputs; return its outputs."""
        for initializer in graph.initializer:
            if initializer.name not in scope.maps[0]:
                scope[initializer.name] = self.value(
                    constant(initializer), kind=carried.kind_of(initializer.data_type)
                )
        if graph.sparse_initializer:
            raise ImportModelError("sparse initializers cannot be imported")
        self.run_nodes(graph.node, scope, self.opsets)
        for output in graph.output:
            if output.name not in scope:
                raise ImportModelError(f"no node computes the output {output.name!r}")
        return [scope[output.name] for output in graph.output]

    def run_nodes(self, nodes: Any, scope: Scope, opsets: dict[str, int]) -> None:
        """Run nodes one after another."""
        for node in nodes:
            inputs = [self._input(node, name, scope) for name in node.input]
            try:
                outputs = self._run_node(node, inputs, scope, opsets)
            except UnknownInput as error:
                given = inputs[error.index]
                names = given.sources if given is not None else frozenset()
                said = ", ".join(map(repr, sorted(names)))
                raise FixedInputError(
                    names, f"{place(node)}: {error} ({said}): make that an initializer"
                ) from error
            except Refusal as error:
                raise ImportModelError(f"{place(node)}: {error}") from error
            except ImportModelError:
                raise
            except (RuntimeError, TypeError, ValueError, IndexError, KeyError) as error:
                # PyTorch's own words: an element type it lacks, shapes that do not fit.
                lines = str(error).strip().splitlines() or [type(error).__name__]
                raise ImportModelError(f"{place(node)}: {lines[0]}") from error
            made = zip(node.output, outputs, strict=False)
            scope.update({n: v for n, v in made if n and v is not None})

    def _input(self, node: onnx.NodeProto, name: str, scope: Scope) -> Value | None:
        if not name:
            return None
        if name not in scope:
            raise ImportModelError(f"{place(node)} takes {name!r}, which nothing computes")
        return scope[name]

    def _run_node(
        self,
        node: onnx.NodeProto,
        inputs: list[Value | None],
        scope: Scope,
        opsets: dict[str, int],
    ) -> list[Any]:
        if node.op_type in control.OPERATORS:
            return control.OPERATORS[node.op_type](self, node, inputs, scope)
        function = OPERATORS.get(node.op_type) or DATA_DEPENDENT.get(node.op_type)
        if function is None:
            return functions.run_body(self, node, inputs, opsets)
        wanted = frozenset(i for i, name in enumerate(node.output) if name)
        kinds = {i: v.kind for i, v in enumerate(inputs) if v is not None and v.kind is not None}
        opset = opsets.get("", 1)
        call = Call(
            node.op_type,
            place(node),
            opset,
            {a.name: attribute_value(a) for a in node.attribute},
            {i: as_array(v.data) for i, v in enumerate(inputs) if v and _is_known_tensor(v)},
            len(node.output),
            wanted,
            kinds,
            carried.kinds_made(node, opset, kinds),
        )
        data = tuple(None if v is None else v.data for v in inputs)
        result = carried.run(call, function, data)
        results = result if isinstance(result, tuple) else (result,)
        if len(results) <= max(wanted, default=0):
            raise Refusal(f"its output {max(wanted)} is used, which only training has")
        read = inputs[: _READ.get(node.op_type, len(inputs))]
        sources = frozenset[str]().union(*(v.sources for v in read if v is not None))
        if node.op_type in DATA_DEPENDENT and sources:
            raise Refusal("the shape of its result depends on values")
        made = call.made or (None,) * len(results)
        outputs = [
            self.value(data, sources, kind) for data, kind in zip(results, made, strict=False)
        ]
        weight = not sources and _is_quantized_weight(node, inputs)
        if sources or weight:
            self.nodes.append((OnnxNode(call, function), inputs, outputs))
        for output in outputs if weight else ():
            output.computed = True
        return outputs

    def finish(self, names: list[str], outputs: list[Value]) -> OnnxModule:
        """The module of what the outputs need."""
        for value in outputs:
            parts = value.data if isinstance(value.data, list) else [value.data]
            if not all(isinstance(part, torch.Tensor) for part in parts):
                raise ImportModelError("an output is an optional that is empty")
        outputs = [self._leave(value) for value in outputs]
        kept, needed = self._kept(outputs)
        constants = self._constants(needed)
        module = OnnxModule(names, kept, constants, [v.number for v in outputs])
        return module.eval()

    def _leave(self, value: Value) -> Value:
        kind = value.kind
        if kind is None:
            return value
        return self._step("an output", value, lambda call, x: carried.leave(x, kind), None)

    def branch(self, graph: onnx.GraphProto, scope: Scope) -> tuple[Steps, list[Value]]:
        """Run a graph whose steps are not those of the model; its steps and its outputs."""
        before, self.nodes = self.nodes, []
        try:
            outputs = self.run(graph, scope)
            return self.nodes, outputs
        finally:
            self.nodes = before

    def branch_module(self, steps: Steps, outputs: list[Value], given: list[int]) -> OnnxModule:
        """The module of a branch, of values that are computed outside of it."""
        before, self.nodes = self.nodes, steps
        try:
            kept, needed = self._kept(outputs)
        finally:
            self.nodes = before
        names = [f"operand_{place}" for place in range(len(given))]
        numbers = [v.number for v in outputs]
        return OnnxModule(names, kept, self._constants(needed), numbers, given)

    def _kept(self, outputs: list[Value]) -> tuple[list[Any], set[int]]:
        """Steps that the outputs need, in order, and the numbers of all values they read."""
        needed = {v.number for v in outputs}
        kept = []
        for module, taken, made in reversed(self.nodes):
            if any(v.number in needed for v in made):
                needed |= {v.number for v in taken if v is not None}
                numbers = [None if v is None else v.number for v in taken]
                kept.append((module, numbers, [v.number for v in made]))
        return kept[::-1], needed

    def _constants(self, needed: set[int]) -> dict[int, Any]:
        kept = (n for n in sorted(needed) if self.values[n].known and not self.values[n].computed)
        return {n: self.values[n].data for n in kept}


# What may stand between a quantised weight and the operator that reads it.
_MOVES = ("Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


def _is_quantized_weight(node: onnx.NodeProto, inputs: list[Value | None]) -> bool:
    """Whether a node gives a weight that is stored in bytes: what makes floats of them, or moves
    the result."""
    first = inputs[0] if inputs else None
    if first is None or not isinstance(first.data, torch.Tensor) or first.kind is not None:
        return False
    if node.op_type in _MOVES:
        return first.computed
    is_bytes = first.data.dtype in (torch.uint8, torch.int8) and first.data.ndim > 1
    return node.op_type == "DequantizeLinear" and is_bytes


def _is_known_tensor(value: Value) -> bool:
    return value.known and isinstance(value.data, torch.Tensor)


def _all_nodes(graph: onnx.GraphProto) -> Any:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _all_nodes(attribute.g)


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)


def place(node: onnx.NodeProto) -> str:
    """A node in words: its operator, and its name or that of its output."""
    name = node.name or next((o for o in node.output if o), "?")
    return f"node {name!r} ({_operator(node)})"
