"""An ONNX graph as a ``torch.nn.Module``: a list of steps on numbered values."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tvmfuse.frontend.onnx import carried
from tvmfuse.frontend.onnx.call import Call, Operator


class OnnxNode(nn.Module):
    """One node; a module of its own, so that errors can name it (``node_place``)."""

    def __init__(self, call: Call, function: Operator) -> None:
        super().__init__()
        self.call, self.function = call, function

    def forward(self, *inputs: Any) -> Any:
        """The node's outputs: a tensor, a list (an ONNX sequence), or a tuple of these."""
        return carried.run(self.call, self.function, inputs)


class OnnxModule(nn.Module):
    """A graph, specialised to the shapes of its inputs.

    Parameters
    ----------
    names
        Of the inputs.
    nodes
        In order: module, numbers of its inputs (None for one left out) and of its outputs.
    constants
        Number to value.
    outputs
        Numbers of the outputs.
    given
        Numbers of the inputs; the first ones when left out.
    """

    def __init__(
        self,
        names: list[str],
        nodes: list[tuple[OnnxNode, list[int | None], list[int]]],
        constants: dict[int, Any],
        outputs: list[int],
        given: list[int] | None = None,
    ) -> None:
        super().__init__()
        self.parameter_names = tuple(names)
        self.given = list(range(len(names))) if given is None else given
        self.nodes = nn.ModuleDict()
        self.steps: list[tuple[str, list[int | None], list[int]]] = []
        for place, (module, inputs, made) in enumerate(nodes):
            key = f"{module.call.name}#{place}".replace(".", "_")
            self.nodes[key] = module
            self.steps.append((key, inputs, made))
        self.constants: dict[int, str | list[str]] = {}
        for number, value in constants.items():
            if isinstance(value, list):
                self.constants[number] = [
                    self._keep(f"constant_{number}_{place}", part)
                    for place, part in enumerate(value)
                ]
            else:
                self.constants[number] = self._keep(f"constant_{number}", value)
        self.outputs = outputs

    def _keep(self, name: str, value: torch.Tensor) -> str:
        if value.is_floating_point():
            self.register_parameter(name, nn.Parameter(value, requires_grad=False))
        else:
            self.register_buffer(name, value)
        return name

    def forward(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        """The outputs of the graph, in its order: tensors, and lists of them."""
        values: dict[int | None, Any] = {None: None, **dict(zip(self.given, inputs, strict=True))}
        for number, name in self.constants.items():
            if isinstance(name, str):
                values[number] = getattr(self, name)
            else:
                values[number] = [getattr(self, part) for part in name]
        for key, taken, made in self.steps:
            result = self.nodes[key](*(values[number] for number in taken))
            results = result if isinstance(result, tuple) else (result,)
            values.update(zip(made, results, strict=False))
        own = {*self.given, *self.constants}
        return tuple(_copy(values[n]) if n in own else values[n] for n in self.outputs)


def _copy(value: Any) -> Any:
    return [part.clone() for part in value] if isinstance(value, list) else value.clone()


class OnnxChoice(OnnxNode):
    """An If whose condition depends on the inputs: two graphs, one of which runs."""

    def __init__(self, call: Call, true: OnnxModule, false: OnnxModule) -> None:
        super().__init__(call, _no_function)
        self.true, self.false = true, false

    def forward(self, condition: torch.Tensor, *operands: torch.Tensor) -> tuple[Any, ...]:
        """The outputs of the branch that the condition chooses; both take all operands."""
        condition = condition.reshape(())
        if torch.compiler.is_exporting():
            chosen: tuple[Any, ...] = torch.cond(condition, self._copies_of_true,
                                                 self._copies_of_false, operands)  # fmt: skip
            return chosen
        return self.true(*operands) if condition else self.false(*operands)

    # torch.cond takes no branch that returns a view of an operand.
    def _copies_of_true(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t.clone() for t in self.true(*operands))

    def _copies_of_false(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t.clone() for t in self.false(*operands))


def _no_function(*_: Any) -> None:
    raise NotImplementedError
