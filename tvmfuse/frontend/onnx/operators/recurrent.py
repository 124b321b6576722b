"""RNN, GRU and LSTM, step by step: every option of the standard is a line of the cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tvmfuse.frontend.onnx.call import Call, Operator, Refusal

Cell = Callable[..., tuple[Tensor, ...]]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu, "softplus": F.softplus,
    "softsign": F.softsign,
}  # fmt: skip


def _activations(call: Call, defaults: list[str], direction: int) -> list[Any]:
    names = call.attribute("activations") or defaults * 2
    if call.attribute("activation_alpha") or call.attribute("activation_beta"):
        raise Refusal("its activations have alpha or beta, which is not known")
    chosen = names[direction * len(defaults) :][: len(defaults)]
    unknown = [n for n in chosen if n.lower() not in _ACTIVATIONS]
    if unknown:
        raise Refusal(f"has the activation {unknown[0]!r}; known are {', '.join(_ACTIVATIONS)}")
    limit = call.attribute("clip")

    def clipped(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return (lambda x: function(torch.clamp(x, -limit, limit))) if limit else function

    return [clipped(_ACTIVATIONS[n.lower()]) for n in chosen]


def _rnn_cell(call: Call, d: int, r: Tensor, wb: Tensor, rb: Tensor, p: Any) -> Cell:
    (f,) = _activations(call, ["Tanh"], d)
    return lambda gates, h: (f(gates + wb + h @ r.T + rb),)


def _gru_cell(call: Call, d: int, r: Tensor, wb: Tensor, rb: Tensor, p: Any) -> Cell:
    f, g = _activations(call, ["Sigmoid", "Tanh"], d)
    size = r.shape[1]
    rz, rr, rh = r.split(size)
    bz, br, bh = rb.split(size)

    def cell(gates: Tensor, h: Tensor) -> tuple[Tensor]:
        z, reset, new = (gates + wb).split(size, -1)
        z = f(z + h @ rz.T + bz)
        reset = f(reset + h @ rr.T + br)
        if call.attribute("linear_before_reset", 0):
            new = g(new + reset * (h @ rh.T + bh))
        else:
            new = g(new + (reset * h) @ rh.T + bh)
        return ((1 - z) * new + z * h,)

    return cell


def _lstm_cell(call: Call, d: int, r: Tensor, wb: Tensor, rb: Tensor, p: Any) -> Cell:
    f, g, h_ = _activations(call, ["Sigmoid", "Tanh", "Tanh"], d)
    size = r.shape[1]
    pi, po, pf = p.split(size) if p is not None else (None, None, None)

    def peep(gate: Tensor, weight: Any, state: Tensor) -> Tensor:
        return gate if weight is None else gate + weight * state

    def cell(gates: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, o, forget, new = (gates + h @ r.T + wb + rb).split(size, -1)
        i = f(peep(i, pi, c))
        forget = 1 - i if call.attribute("input_forget", 0) else f(peep(forget, pf, c))
        c = forget * c + i * g(new)
        return f(peep(o, po, c)) * h_(c), c

    return cell


def _recurrent(make: Callable[..., Cell], gates: int, states: int) -> Operator:
    def apply(call: Call, *inputs: Any) -> tuple[Tensor, ...]:
        given = [*inputs, *[None] * (8 - len(inputs))]
        x, w, r, bias, lengths = given[:5]
        rest = given[5:]
        x = x.transpose(0, 1) if call.attribute("layout", 0) else x
        first = [_state(call, s, w, x, r) for s in rest[:states]]
        peepholes = rest[2] if states == 2 else None
        reverse = call.attribute("direction", "forward") == "reverse"
        outputs, finals = [], []
        for d in range(w.shape[0]):
            b = torch.zeros(2 * gates * r.shape[-1], dtype=x.dtype) if bias is None else bias[d]
            wb, rb = b.split(gates * r.shape[-1])
            cell = make(call, d, r[d], wb, rb, None if peepholes is None else peepholes[d])
            backward = reverse or d == 1
            y, last = _run(cell, x @ w[d].T, [s[d] for s in first], lengths, backward)
            outputs.append(y)
            finals.append(last)
        y = torch.stack(outputs, 1)
        ends = [torch.stack([last[i] for last in finals]) for i in range(states)]
        if call.attribute("layout", 0):
            return (y.permute(2, 0, 1, 3), *(e.transpose(0, 1) for e in ends))
        return (y, *ends)

    return apply


def _state(call: Call, given: Any, w: Tensor, x: Tensor, r: Tensor) -> Tensor:
    if given is None:
        return torch.zeros(w.shape[0], x.shape[1], r.shape[-1], dtype=x.dtype)
    return given.transpose(0, 1) if call.attribute("layout", 0) else given


def _run(
    cell: Cell, gates: Tensor, state: list[Tensor], lengths: Any, backward: bool
) -> tuple[Tensor, list[Tensor]]:
    """All steps in one direction; sequences that have ended keep their state and give zeros."""
    steps = range(gates.shape[0])
    outputs: list[Any] = [None] * len(steps)
    for t in reversed(steps) if backward else steps:
        new = list(cell(gates[t], *state))
        outputs[t] = new[0]
        if lengths is not None:
            alive = (lengths > t)[:, None]
            outputs[t] = torch.where(alive, new[0], torch.zeros_like(new[0]))
            new = [torch.where(alive, a, b) for a, b in zip(new, state, strict=True)]
        state = new
    return torch.stack(outputs), state


OPERATORS: dict[str, Operator] = {
    "GRU": _recurrent(_gru_cell, 3, 1),
    "LSTM": _recurrent(_lstm_cell, 4, 2),
    "RNN": _recurrent(_rnn_cell, 1, 1),
}
