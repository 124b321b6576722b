"""State: buffers that a model changes while it runs, such as a cache of keys and values.

In the functional program the new value of such a buffer is one output more. Here the buffer itself
becomes one input more, in front of the user's, and the new values stay in front of the user's
outputs; whoever calls the compiled function keeps the values between calls.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from tvmfuse.errors import ImportModelError
from tvmfuse.workload import State


def take_states(program: Any) -> tuple[State, ...]:
    """Turn changed buffers of a functional program into inputs and outputs, in place.

    Returns
    -------
    tuple of State
        In the order of both, with the values that the buffers have now.

    Raises
    ------
    ImportModelError
        The program changes an input of the caller's.
    """
    signature = program.graph_signature
    changes = [s for s in signature.output_specs if s.kind is not OutputKind.USER_OUTPUT]
    foreign = [s for s in changes if s.kind is not OutputKind.BUFFER_MUTATION]
    if foreign:
        names = ", ".join(repr(s.target or s.arg.name) for s in foreign)
        raise ImportModelError(
            f"the model changes its inputs or parameters ({names}) while it runs; a compiled "
            "module leaves the caller's arrays alone: work on a clone, and return the new value"
        )
    if not changes:
        return ()
    changed = {str(s.target): s for s in changes}
    stored = {**program.constants, **program.state_dict}
    inputs = [s for s in signature.input_specs if s.kind is InputKind.BUFFER]
    order = [str(s.target) for s in inputs if s.target in changed]
    missing = sorted(set(changed) - set(order))
    assert not missing, missing
    states = tuple(State(name, stored[name].detach().clone()) for name in order)
    for spec in inputs:
        if spec.target in changed:
            spec.kind, spec.target, spec.persistent = InputKind.USER_INPUT, None, None
    for name in order:
        # TVM's importer binds all of these by name, those without a spec to whatever came last.
        program.constants.pop(name, None)
    _outputs_first(program, [changed[name] for name in order])
    return states


def _outputs_first(program: Any, changes: list[Any]) -> None:
    """Let the new values be the first outputs, in the order of the inputs."""
    signature = program.graph_signature
    output = next(n for n in reversed(program.graph.nodes) if n.op == "output")
    pairs = list(zip(signature.output_specs, output.args[0], strict=True))
    first = [next(pair for pair in pairs if pair[0] is change) for change in changes]
    rest = [pair for pair in pairs if not any(pair[0] is change for change in changes)]
    for spec, _ in first:
        spec.kind, spec.target = OutputKind.USER_OUTPUT, None
    signature.output_specs[:] = [spec for spec, _ in first + rest]
    output.args = (tuple(node for _, node in first + rest),)


def restore(module: torch.nn.Module, states: tuple[State, ...]) -> None:
    """Give the module's buffers the values that they had at import, in place."""
    with torch.no_grad():
        for state in states:
            module.get_buffer(state.name).copy_(state.value)
