"""If, Loop and Scan. Loops are unrolled: their counts must be known at compile time."""

from __future__ import annotations

from typing import Any

import onnx
import torch

from tvmfuse.frontend.onnx.call import Call, Refusal, UnknownInput, axis_in
from tvmfuse.frontend.onnx.module import OnnxChoice, OnnxNode

_MOST_ROUNDS = 1024


def _known(value: Any, index: int, what: str) -> Any:
    if not value.known:
        raise UnknownInput(
            index, f"its {what} must be known at compile time, but depends on an input of the model"
        )
    return value.data


def _graph(node: onnx.NodeProto, name: str) -> onnx.GraphProto:
    return next(a.g for a in node.attribute if a.name == name)


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    found = [a for a in node.attribute if a.name == name]
    return onnx.helper.get_attribute_value(found[0]) if found else default


def _if(planner: Any, node: onnx.NodeProto, inputs: list[Any], scope: Any) -> list[Any]:
    if not inputs[0].known:
        return _choice(planner, node, inputs[0], scope)
    branch = _graph(node, "then_branch" if bool(inputs[0].data) else "else_branch")
    return planner.run(branch, scope.new_child())


def _choice(planner: Any, node: onnx.NodeProto, condition: Any, scope: Any) -> list[Any]:
    """An If that is decided while the model runs: both branches become modules."""
    if condition.data.numel() != 1:
        raise Refusal(f"its condition has {condition.data.numel()} elements")
    sides = [
        planner.branch(_graph(node, name), scope.new_child())
        for name in ("then_branch", "else_branch")
    ]
    _refuse_unlike(*(outputs for _, outputs in sides))
    read: dict[int, Any] = {}
    for steps, outputs in sides:
        made = {v.number for _, _, results in steps for v in results}
        taken = [v for _, values, _ in steps for v in values if v is not None] + outputs
        read.update((v.number, v) for v in taken if v.number not in made and not v.known)
    call = Call("If", f"node {node.name or node.output[0]!r} (If)", planner.opsets.get("", 1), {})
    modules = [planner.branch_module(*side, list(read)) for side in sides]
    sources = condition.sources.union(*(v.sources for _, o in sides for v in o))
    chosen = sides[0 if bool(condition.data) else 1][1]
    results = [planner.value(v.data, sources, v.kind) for v in chosen]
    planner.nodes.append((OnnxChoice(call, *modules), [condition, *read.values()], results))
    return results


def _refuse_unlike(true: list[Any], false: list[Any]) -> None:
    for one, other in zip(true, false, strict=True):
        if one.kind != other.kind:
            raise Refusal("its branches give different element types")
        values = one.data, other.data
        if not all(isinstance(v, torch.Tensor) for v in values):
            raise Refusal("its branches give sequences, and which one runs depends on an input")
        kinds = [f"{str(v.dtype).removeprefix('torch.')}{list(v.shape)}" for v in values]
        if kinds[0] != kinds[1]:
            raise Refusal(
                f"its branches give {kinds[0]} and {kinds[1]}, and which one runs depends on an "
                "input of the model"
            )


def _body(planner: Any, graph: onnx.GraphProto, scope: Any, values: list[Any]) -> list[Any]:
    inner = scope.new_child()
    inner.update(zip((i.name for i in graph.input), values, strict=True))
    return planner.run(graph, inner)


def _collect(planner: Any, parts: list[Any], axis: int = 0, reverse: bool = False) -> Any:
    """One value of the values that the rounds gave."""
    if not parts:
        raise Refusal("it runs no round, so the shape of a scanned output is not known")
    parts = parts[::-1] if reverse else parts
    data = torch.stack([p.data for p in parts], axis_in(axis, parts[0].data.ndim + 1))
    sources = frozenset().union(*(p.sources for p in parts))
    made = planner.value(data, sources, parts[0].kind)
    if sources:
        call = Call("stack", "stack of rounds", 0, {"axis": axis})
        planner.nodes.append((OnnxNode(call, _stack), list(parts), [made]))
    return made


def _stack(call: Any, *parts: torch.Tensor) -> torch.Tensor:
    return torch.stack(parts, axis_in(call.attribute("axis"), parts[0].ndim + 1))


def _loop(planner: Any, node: onnx.NodeProto, inputs: list[Any], scope: Any) -> list[Any]:
    graph = _graph(node, "body")
    rounds = None if inputs[0] is None else int(_known(inputs[0], 0, "trip count"))
    condition = True if inputs[1] is None else bool(_known(inputs[1], 1, "condition"))
    carried, scanned = list(inputs[2:]), []
    done = 0
    while condition and (rounds is None or done < rounds):
        if done == _MOST_ROUNDS:
            raise Refusal(f"it would be unrolled more than {_MOST_ROUNDS} times")
        first = [planner.value(torch.tensor(done)), planner.value(torch.tensor(True))]
        results = _body(planner, graph, scope, [*first, *carried])
        if not results[0].known:
            raise Refusal("its condition depends on an input; it must be known at compile time")
        condition = bool(results[0].data)
        carried = results[1 : 1 + len(carried)]
        scanned.append(results[1 + len(carried) :])
        done += 1
    outputs = len(node.output) - len(carried)
    return [*carried, *(_collect(planner, [r[i] for r in scanned]) for i in range(outputs))]


def _scan(planner: Any, node: onnx.NodeProto, inputs: list[Any], scope: Any) -> list[Any]:
    if planner.opsets.get("", 1) < 9:
        raise Refusal("Scan of opset 8 has a batch of its own; convert the model to opset 11")
    graph, count = _graph(node, "body"), int(_attribute(node, "num_scan_inputs", 0))
    states, taken = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
    axes = list(_attribute(node, "scan_input_axes", None) or [0] * count)
    backward = list(_attribute(node, "scan_input_directions", None) or [0] * count)
    made = len(graph.output) - len(states)
    out_axes = list(_attribute(node, "scan_output_axes", None) or [0] * made)
    out_backward = list(_attribute(node, "scan_output_directions", None) or [0] * made)
    length = taken[0].data.shape[axes[0]]
    if length > _MOST_ROUNDS:
        raise Refusal(f"it would be unrolled more than {_MOST_ROUNDS} times")
    scanned = []
    for turn in range(length):
        rows = [
            _row(planner, v, axis, length - 1 - turn if back else turn)
            for v, axis, back in zip(taken, axes, backward, strict=True)
        ]
        results = _body(planner, graph, scope, [*states, *rows])
        states = results[: len(states)]
        scanned.append(results[len(states) :])
    collected = [
        _collect(planner, [r[i] for r in scanned], out_axes[i], bool(out_backward[i]))
        for i in range(made)
    ]
    return [*states, *collected]


def _row(planner: Any, value: Any, axis: int, turn: int) -> Any:
    made = planner.value(value.data.select(axis, turn), value.sources, value.kind)
    if not value.known:
        call = Call("select", "row of a scan", 0, {"axis": axis, "turn": turn})
        planner.nodes.append((OnnxNode(call, _select), [value], [made]))
    return made


def _select(call: Any, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.select(call.attribute("axis"), call.attribute("turn"))


OPERATORS = {"If": _if, "Loop": _loop, "Scan": _scan}
