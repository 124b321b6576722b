"""One ONNX node, as the functions in ``operators/`` see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class Refusal(Exception):
    """An operator cannot be imported as this node uses it; the planner adds which node."""


class UnknownInput(Refusal):
    """An input that must be known at compile time depends on the inputs of the model."""

    def __init__(self, index: int, what: str) -> None:
        self.index = index
        super().__init__(what)


@dataclass
class Call:
    """A node: its attributes and those of its inputs that are known at compile time.

    Parameters
    ----------
    op, name
        Operator and name of the node.
    version
        Opset of the operator's domain in the model.
    attributes
        Plain Python values.
    known
        Position of an input to its value, for inputs that no input of the model changes.
    outputs
        How many outputs the node has.
    wanted
        Positions of the outputs that are used (have a name).
    kinds, made
        Element types of inputs (by position) and of outputs that are carried in others: see
        :mod:`.carried`.
    """

    op: str
    name: str
    version: int
    attributes: dict[str, Any]
    known: dict[int, np.ndarray] = field(default_factory=dict)
    outputs: int = 1
    wanted: frozenset[int] = frozenset((0,))
    kinds: dict[int, int] = field(default_factory=dict)
    made: tuple[int | None, ...] = ()

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute, or its default."""
        return self.attributes.get(name, default)

    def array(self, index: int, name: str, inputs: tuple[Any, ...]) -> np.ndarray | None:
        """Input ``index`` as a NumPy array; None where the node has no such input.

        Raises
        ------
        UnknownInput
            Its value depends on the inputs of the model.
        """
        if index >= len(inputs) or inputs[index] is None:
            return None
        if index not in self.known:
            raise UnknownInput(
                index,
                f"its input {name!r} decides shapes, so it must be known at compile time, but it "
                "depends on an input of the model",
            )
        return self.known[index]

    def required(self, index: int, name: str, inputs: tuple[Any, ...]) -> np.ndarray:
        """:meth:`array` of an input that every such node has."""
        found = self.array(index, name, inputs)
        if found is None:
            raise Refusal(f"lacks the input {name!r}")
        return found

    def setting(self, index: int, name: str, inputs: tuple[Any, ...], default: Any = None) -> Any:
        """A parameter that newer opsets pass as input ``index`` and older ones as an attribute."""
        value = self.array(index, name, inputs)
        return self.attributes.get(name, default) if value is None else value.tolist()


Operator = Callable[..., Any]


def axis_in(axis: int, rank: int) -> int:
    """A non-negative axis; raises Refusal for one that the tensor does not have."""
    if not -rank <= axis < max(rank, 1):
        raise Refusal(f"axis {axis} is outside a tensor of {rank} dimensions")
    return axis % rank if rank else 0
