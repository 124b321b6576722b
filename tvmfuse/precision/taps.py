"""Run an exported program in float64 and look at the value of every node, or run a part of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

_LOW = (torch.float32, torch.float16, torch.bfloat16)


def run_exact(
    program: Any,
    inputs: Sequence[torch.Tensor],
    see: Callable[[fx.Node, Any], Any],
    before: Callable[[fx.Node, Any, Any], None] | None = None,
) -> None:
    """Run ``program`` with every float of it in float64.

    Parameters
    ----------
    program
        A functional ``torch.export.ExportedProgram``.
    inputs
        Its user inputs in flat order.
    see
        Called with each operator's node and its value, in order; values are freed after their
        last use. What it returns takes the value's place in the rest of the run, unless None.
    before
        Called with each operator's node, arguments and keyword arguments before it runs.

    Raises
    ------
    Exception
        Whatever an operator raises that has no float64 form.
    """
    with torch.no_grad():
        given = [_widened(value) for value in _arguments(program, inputs)]
        _Exact(program.graph_module, see, before).run(*given)


def run_part(
    program: Any,
    inputs: Sequence[torch.Tensor],
    wanted: fx.Node,
    known: Callable[[fx.Node], Any],
) -> Any:
    """Value of one node in the program's own types, from the values nearest to it that are known.

    Parameters
    ----------
    program, inputs
        As for :func:`run_exact`.
    wanted
        An operator's node.
    known
        Value of a node in front of it, or None; nothing in front of a known one is run.

    Raises
    ------
    Exception
        Whatever an operator raises.
    """
    part = fx.Interpreter(program.graph_module)
    placeholders = program.graph.find_nodes(op="placeholder")
    part.env = dict(zip(placeholders, _arguments(program, inputs), strict=True))
    needed = {wanted}
    waiting = list(wanted.all_input_nodes)
    while waiting:
        node = waiting.pop()
        if node in needed or node in part.env:
            continue
        value = known(node)
        if value is None:
            needed.add(node)
            waiting += node.all_input_nodes
        else:
            part.env[node] = value
    with torch.no_grad():
        for node in program.graph.nodes:
            if node in needed:
                part.env[node] = part.run_node(node)
    return part.env[wanted]


class _Exact(fx.Interpreter):
    def __init__(
        self,
        module: fx.GraphModule,
        see: Callable[[fx.Node, Any], Any],
        before: Callable[[fx.Node, Any, Any], None] | None,
    ) -> None:
        super().__init__(module)
        self._see, self._before = see, before
        # Values that no weight and no input changes. Import computes them in their own types (the
        # places that resizing reads at, say) and the compiled model is given them as data.
        self._data: set[fx.Node] = set()
        self._plain = False

    def run_node(self, n: fx.Node) -> Any:
        self._plain = n.op == "call_function" and self._data.issuperset(n.all_input_nodes)
        if self._plain:
            self._data.add(n)
        if self._before is not None and n.op == "call_function":
            self._before(n, *self.fetch_args_kwargs_from_env(n))
        value = super().run_node(n)
        other = self._see(n, value) if n.op == "call_function" else None
        return value if other is None else other

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Types that the program names are widened too: it may cast to float32 on its way."""
        if not self._plain:
            args, kwargs = pytree.tree_map(_widened, (args, kwargs))
        return super().call_function(target, args, kwargs)


def _arguments(program: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Placeholders of the graph in order: weights from the program, then the caller's."""
    stored = {**program.constants, **program.state_dict}
    given = iter(inputs)
    found = []
    for spec in program.graph_signature.input_specs:
        value = next(given) if spec.kind is InputKind.USER_INPUT else stored[spec.target]
        found.append(value.detach() if isinstance(value, torch.Tensor) else value)
    return found


def _widened(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float64 if value in _LOW else value
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype in _LOW else value.clone()
    return value
