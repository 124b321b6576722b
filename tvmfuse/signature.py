"""What a compiled model takes and returns: tensors in a tree of plain containers.

The tree is JSON-able, so that the loader can rebuild the user's own structure without torch:
``{"tensor": 0}``, ``{"tuple": [...]}``, ``{"list": [...]}``, ``{"dict": {key: ...}}``,
``{"const": value}`` (``None``, bool, int, float, str), ``{"named_tuple": [name, {field: ...}]}``
and ``{"dataclass": [name, {field: ...}]}``. The classes of the last two belong to the user's code,
which the loader does not import: they come back as a named tuple of the same name and fields, and
as a ``types.SimpleNamespace`` of the fields.
"""

from __future__ import annotations

import types
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

OWN_TYPES = "model"


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and dtype of one input or output.

    Parameters
    ----------
    name
        Name of the parameter in the user's ``forward``, or ``output_<i>``.
    shape
        Extents; every one is a known integer.
    dtype
        NumPy's name of the element type, ``bfloat16`` besides.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class IndexBound:
    """What the elements of an input must satisfy: ``low <= element < high``.

    Parameters
    ----------
    position
        Of the input among the flat ones.
    low, high
        The smallest index, and the one behind the largest.
    reader
        The operator that takes them as an index, and where it stands.
    """

    position: int
    low: int
    high: int
    reader: str


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a model, flat, with the tree that structures them.

    Parameters
    ----------
    inputs, outputs
        The tensors in flat order.
    input_tree
        Tree of the arguments: ``{"tuple": [...]}``, the positional ones first.
    output_tree
        Tree of the returned value.
    parameters
        Name of every part of that tuple.
    by_name
        How many of them, the last ones, are passed by keyword only.
    computes
        ``"model"``: in the model's own types; ``"float16"`` or ``"bfloat16"``: operands of its
        products are rounded to halves inside, whatever it takes and returns.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    input_tree: dict[str, Any] = field(default_factory=dict)
    output_tree: dict[str, Any] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    by_name: int = 0
    computes: str = OWN_TYPES

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``manifest.json``."""

        def specs(many: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
            return [{"name": s.name, "shape": list(s.shape), "dtype": s.dtype} for s in many]

        return {
            "inputs": specs(self.inputs),
            "outputs": specs(self.outputs),
            "input_tree": self.input_tree,
            "output_tree": self.output_tree,
            "parameters": list(self.parameters),
            "by_name": self.by_name,
            **({} if self.computes == OWN_TYPES else {"computes": self.computes}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Signature:
        """Inverse of :meth:`to_json`; raises KeyError or TypeError on malformed data."""

        def specs(many: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
            return tuple(TensorSpec(s["name"], tuple(s["shape"]), s["dtype"]) for s in many)

        return cls(
            specs(data["inputs"]),
            specs(data["outputs"]),
            data["input_tree"],
            data["output_tree"],
            tuple(map(str, data.get("parameters", ()))),
            int(data.get("by_name", 0)),
            str(data.get("computes", OWN_TYPES)),
        )

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments of a call in the order of ``input_tree``.

        Raises
        ------
        ValueError
            An argument is missing, given twice, or has no place.
        """
        names = self.parameters
        if not kwargs and not self.by_name:
            return args  # whoever flattens them counts them
        positional = len(names) - self.by_name
        if len(args) > positional:
            raise ValueError(
                f"{len(args)} positional arguments, but the model takes {positional}; pass "
                f"{', '.join(f'{name}=' for name in names[positional:])} by keyword"
                if self.by_name
                else f"{len(args)} positional arguments and keywords, but the model takes "
                f"{positional} arguments"
            )
        twice = [name for name in names[: len(args)] if name in kwargs]
        if twice:
            raise ValueError(f"{', '.join(twice)} is given by position and by keyword")
        unknown = [name for name in kwargs if name not in names]
        if unknown:
            raise ValueError(
                f"no argument is called {', '.join(map(repr, unknown))}: the model was compiled "
                f"for {', '.join(names) or 'arguments without names'}"
            )
        missing = [name for name in names[len(args) :] if name not in kwargs]
        if missing:
            raise ValueError(f"{', '.join(missing)} is missing: the model was compiled with it")
        return (*args, *(kwargs[name] for name in names[len(args) :]))

    def apart(self, inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of a call; inverse of :meth:`bind`."""
        at = len(inputs) - self.by_name
        return inputs[:at], dict(zip(self.parameters[at:], inputs[at:], strict=True))

    def call(self, model: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
        """Call a model of this signature with arguments that are in the order of the tree."""
        args, kwargs = self.apart(inputs)
        return model(*args, **kwargs)


_RECORDS = ("named_tuple", "dataclass")


def parts_of(tree: dict[str, Any], value: Any) -> list[tuple[Any, dict[str, Any], Any]]:
    """Key, tree and value of every part of a container that :func:`flatten` has accepted."""
    kind, body = next(iter(tree.items()))
    if kind in ("tensor", "const"):
        return []
    if kind in _RECORDS:
        return [(f, sub, getattr(value, f)) for f, sub in body[1].items()]
    keyed = body.items() if kind == "dict" else enumerate(body)
    return [(key, sub, value[key]) for key, sub in keyed]


def flatten(tree: dict[str, Any], value: Any) -> list[Any]:
    """Return the tensors of ``value`` in flat order; raises ValueError where it does not fit."""
    kind, body = next(iter(tree.items()))
    if kind == "tensor":
        return [value]
    if kind == "const":
        return []
    if kind == "dict":
        if not isinstance(value, dict) or set(value) != set(body):
            want = f"a dict with the keys {sorted(body)}"
            raise ValueError(f"expected {want}, got {_shape_of(value)}")
        return [leaf for key, sub in body.items() for leaf in flatten(sub, value[key])]
    if kind in _RECORDS:
        name, fields = body
        missing = [f for f in fields if not hasattr(value, f)]
        if missing:
            raise ValueError(f"expected a {name} with {', '.join(missing)}, got {_shape_of(value)}")
        return [leaf for f, sub in fields.items() for leaf in flatten(sub, getattr(value, f))]
    if not isinstance(value, (tuple, list)) or len(value) != len(body):
        raise ValueError(f"expected a {kind} of {len(body)}, got {_shape_of(value)}")
    return [leaf for sub, part in zip(body, value, strict=True) for leaf in flatten(sub, part)]


def unflatten(tree: dict[str, Any], leaves: list[Any]) -> Any:
    """Rebuild the value whose tensors are ``leaves``, in flat order."""
    kind, body = next(iter(tree.items()))
    if kind == "tensor":
        return leaves[body]
    if kind == "const":
        return body
    if kind == "dict":
        return {key: unflatten(sub, leaves) for key, sub in body.items()}
    if kind in _RECORDS:
        name, fields = body
        values = {f: unflatten(sub, leaves) for f, sub in fields.items()}
        if kind == "dataclass":
            return types.SimpleNamespace(**values)
        return namedtuple(name, list(values))(**values)  # type: ignore[misc]
    parts = [unflatten(sub, leaves) for sub in body]
    return tuple(parts) if kind == "tuple" else parts


def _shape_of(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict with the keys {sorted(map(str, value))}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
