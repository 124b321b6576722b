"""Signatures from exported programs: pytree specifications to plain JSON trees."""

from __future__ import annotations

import dataclasses
import inspect
from collections import defaultdict, namedtuple
from collections.abc import Iterator
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from tvmfuse.errors import ImportModelError
from tvmfuse.frontend.keywords import ByKeyword
from tvmfuse.signature import Signature, TensorSpec

UNKNOWN = -1  # an extent that depends on values
_PLAIN = (type(None), bool, int, float, str)


def signature_of(program: Any, parameters: tuple[str, ...]) -> Signature:
    """Describe inputs and outputs of an exported program.

    Parameters
    ----------
    program
        The ``torch.export.ExportedProgram``.
    parameters
        Names of the positional parameters of ``forward``.

    Raises
    ------
    ImportModelError
        A container or a constant has no plain form.
    """
    call = program.call_spec
    arguments, keywords = call.in_spec.children()
    by_name = keyword_names(program)
    count = len(arguments.children())
    parameters = tuple(_called(parameters, position) for position in range(count)) + by_name
    values = {n.name: n.meta.get("val") for n in program.graph.nodes}
    graph = program.graph_signature
    sources = [s.arg for s in graph.input_specs if s.kind is InputKind.USER_INPUT]
    sinks = [s.arg for s in graph.output_specs if s.kind is OutputKind.USER_OUTPUT]
    given = [*arguments.children(), *keywords.children()]
    names = [n for spec, name in zip(given, parameters, strict=True) for n in _names(spec, name)]
    inputs = _specs(sources, values, names)
    outputs = _specs(sinks, values, None)
    leaves = _leaves(sources)
    return Signature(
        inputs,
        outputs,
        {"tuple": [_tree(spec, leaves) for spec in given]},
        _tree(call.out_spec, _leaves(sinks)),
        parameters,
        len(by_name),
    )


def keyword_names(program: Any) -> tuple[str, ...]:
    """Names of the keyword arguments of an exported program, in its own order."""
    _, keywords = program.call_spec.in_spec.children()
    return tuple(map(str, keywords.context or ()))


def forward_parameters(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the positional parameter names of ``module.forward``.

    A wrapper that takes any arguments says their names in ``parameter_names``.
    """
    if isinstance(module, ByKeyword):
        return forward_parameters(module.module)
    named = getattr(module, "parameter_names", None)
    if named is not None:
        return tuple(named)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = inspect.signature(module.forward).parameters.values()
    return tuple(p.name for p in found if p.kind in kinds)


def _specs(
    arguments: list[Any], values: dict[str, Any], names: list[str] | None
) -> tuple[TensorSpec, ...]:
    specs: list[TensorSpec] = []
    for position, argument in enumerate(arguments):
        if isinstance(argument, ConstantArgument):
            continue
        value = values[argument.name]
        if not isinstance(value, torch.Tensor):
            raise ImportModelError(
                f"input or output {argument.name!r} is a {type(value).__name__} computed at run "
                "time; only tensors and constants can be passed"
            )
        name = names[position] if names is not None else f"output_{len(specs)}"
        dtype = str(value.dtype).removeprefix("torch.")
        shape = tuple(e if isinstance(e, int) else UNKNOWN for e in value.shape)
        specs.append(TensorSpec(name, shape, dtype))
    return tuple(specs)


def _leaves(arguments: list[Any]) -> Iterator[dict[str, Any]]:
    position = 0
    for argument in arguments:
        if isinstance(argument, ConstantArgument):
            if not isinstance(argument.value, _PLAIN):
                kind = type(argument.value).__name__
                raise ImportModelError(f"a constant input or output is a {kind}: not plain data")
            yield {"const": argument.value}
        else:
            yield {"tensor": position}
            position += 1


def _tree(spec: pytree.TreeSpec, leaves: Iterator[dict[str, Any]]) -> dict[str, Any]:
    if spec.is_leaf():
        return next(leaves)
    children = [_tree(child, leaves) for child in spec.children()]
    if spec.type is list:
        return {"list": children}
    record = _record(spec, children)
    if record is not None:
        return record
    if issubclass(spec.type, tuple):
        return {"tuple": children}
    if issubclass(spec.type, dict):
        keys = _keys(spec)
        if all(isinstance(key, str) for key in keys):
            return {"dict": dict(zip(keys, children, strict=True))}
    raise ImportModelError(
        f"the model takes or returns a {spec.type.__name__}, which the loader cannot rebuild; use "
        "tensors in tuples, named tuples, lists, dataclasses and dicts with string keys"
    )


def _record(spec: pytree.TreeSpec, children: list[dict[str, Any]]) -> dict[str, Any] | None:
    """A named tuple or a dataclass; PyTorch leaves fields of the latter out that are None."""
    if spec.type is namedtuple:
        name = spec.context.__name__
        return {"named_tuple": [name, dict(zip(_keys(spec), children, strict=True))]}
    if not _is_dataclass(spec.type):
        return None
    found = dict(zip(_keys(spec), children, strict=True))
    found.update((field, {"const": None}) for field in spec.context[1])
    return {"dataclass": [spec.type.__name__, found]}


def _is_dataclass(kind: Any) -> bool:
    """Not the outputs of transformers, which are dictionaries as well."""
    return dataclasses.is_dataclass(kind) and not issubclass(kind, dict)  # type: ignore[arg-type]


def _keys(spec: pytree.TreeSpec) -> list[Any]:
    context = spec.context
    if spec.type is namedtuple:
        return list(context._fields)
    if spec.type is defaultdict:
        return list(context[1])
    if _is_dataclass(spec.type):
        return list(context[0])
    if isinstance(context, (list, tuple)) and len(context) == 2 and isinstance(context[0], list):
        context = context[0]  # transformers' ModelOutput: (keys, type)
    return list(context) if isinstance(context, (list, tuple)) else [context]


def _called(parameters: tuple[str, ...], position: int) -> str:
    return parameters[position] if position < len(parameters) else f"input_{position}"


def _names(spec: pytree.TreeSpec, name: str) -> Iterator[str]:
    if spec.is_leaf():
        yield name
        return
    children = spec.children()
    plain = spec.type is list or spec.type is tuple
    keys = range(len(children)) if plain else _keys(spec)
    for key, child in zip(keys, children, strict=True):
        yield from _names(child, f"{name}_{key}")
