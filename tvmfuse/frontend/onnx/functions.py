"""Operators that the standard itself writes as functions of simpler ones."""

from __future__ import annotations

from collections import ChainMap
from typing import Any

import onnx
from onnx import defs

from tvmfuse.frontend.onnx.tensors import onnx_type

_NEWEST_READ = 21  # opset that the functions in operators/ were written by


def _schema(node: onnx.NodeProto, opset: int) -> Any:
    try:
        return defs.get_schema(node.op_type, opset, "")
    except defs.SchemaError:
        return None


def changed_since(node: onnx.NodeProto, opset: int) -> str:
    """Why a node of an opset beyond 21 may mean something else; empty if it does not."""
    if opset > defs.onnx_opset_version():
        return f"is of opset {opset}; onnx {onnx.__version__} knows {defs.onnx_opset_version()}"
    new, old = _schema(node, opset), _schema(node, _NEWEST_READ)
    if new is None:
        return f"does not exist in opset {opset}"
    if opset <= _NEWEST_READ or old is None or new.since_version == old.since_version:
        return ""
    added = set(new.attributes) - set(old.attributes)
    used = sorted(a.name for a in node.attribute if a.name in added)
    return f"has the attribute {used[0]!r}, newer than opset {_NEWEST_READ}" if used else ""


def has_body(node: onnx.NodeProto, opsets: dict[str, int]) -> bool:
    """Whether the standard gives a function for the operator."""
    schema = _schema(node, opsets.get("", 1))
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def run_body(
    planner: Any, node: onnx.NodeProto, inputs: list[Any], opsets: dict[str, int]
) -> list[Any]:
    """Run the function that the standard gives for a node."""
    schema = _schema(node, opsets.get("", 1))
    if schema.has_context_dependent_function:
        types = [_type_of(v) for v in inputs]
        text = schema.get_context_dependent_function(node.SerializeToString(), types)
        body = onnx.FunctionProto.FromString(text)
    else:
        body = schema.function_body
    inner = {o.domain: o.version for o in body.opset_import} or opsets
    given = {a.name: a for a in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.type:
            given[name] = attribute.default_value
    scope: Any = ChainMap()
    for name, value in zip(body.input, inputs, strict=False):
        if value is not None:
            scope[name] = value
    left_out = set(body.input) - set(scope)
    nodes = [_bound(n, given, left_out) for n in body.node]
    planner.run_nodes(nodes, scope, inner)
    return [scope.get(name) for name in body.output]


def _bound(node: onnx.NodeProto, given: dict[str, Any], left_out: set[str]) -> onnx.NodeProto:
    """A node of a function with its references to the function's attributes filled in."""
    bound = onnx.NodeProto()
    bound.CopyFrom(node)
    del bound.attribute[:], bound.input[:]
    bound.input.extend("" if name in left_out else name for name in node.input)
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            bound.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            filled = onnx.AttributeProto()
            filled.CopyFrom(given[attribute.ref_attr_name])
            filled.name = attribute.name
            bound.attribute.append(filled)
    return bound


def _type_of(value: Any) -> bytes:
    if value is None:
        return onnx.TypeProto().SerializeToString()
    data = value.data
    made = onnx.helper.make_tensor_type_proto(value.kind or onnx_type(data.dtype), list(data.shape))
    return made.SerializeToString()
