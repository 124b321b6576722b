"""Attention between its merging rule and its lowering: one call in the graph.

``call_pure_packed("tvmfuse.attention", q, k, v, *masks, StringImm(recipe))``: q[…, SQ, D],
k[…, D, SK] (as the product of scores reads it), v[…, SK, DV], each broadcast along its leading
axes. It never reaches the runtime: `tvmfuse.passes.lower_attention` turns it into a kernel.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import StringImm

NAME = "tvmfuse.attention"


@dataclass(frozen=True)
class ScoreStep:
    """One operator on the scores.

    Parameters
    ----------
    kind, value, offset
        As in `tvmfuse.schedules.anchor.Step`.
    mask
        Which of the call's masks it reads; -1 for none.
    shapes
        Shapes that the scores take from here on: the one to which the mask broadcasts, then
        those of the reshapes behind it.
    """

    kind: str
    value: float = 0.0
    offset: int = 0
    mask: int = -1
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Recipe:
    """What is computed beside the two products."""

    steps: tuple[ScoreStep, ...]
    safe: bool


@dataclass(frozen=True)
class AttentionCall:
    """A call as it stands in the graph."""

    q: Any
    k: Any
    v: Any
    masks: tuple[Any, ...]
    recipe: Recipe


def make_call(call: AttentionCall, shape: Sequence[int], dtype: str) -> relax.Call:
    """The expression for a call whose result has ``shape``."""
    text = json.dumps(dataclasses.asdict(call.recipe))
    arguments = [call.q, call.k, call.v, *call.masks, StringImm(text)]
    ty = relax.TensorType(list(shape), dtype)
    return relax.call_pure_packed(NAME, *arguments, ty_args=[ty])


def read_call(value: Any) -> AttentionCall | None:
    """Inverse of :func:`make_call`; None for any other expression."""
    if not isinstance(value, relax.Call) or not value.args:
        return None
    if str(getattr(value.args[0], "global_symbol", "")) != NAME:
        return None
    q, k, v, *masks, text = value.args[1:]
    data = json.loads(str(text.value))
    steps = tuple(
        ScoreStep(**{**step, "shapes": tuple(tuple(s) for s in step["shapes"])})
        for step in data["steps"]
    )
    return AttentionCall(q, k, v, tuple(masks), Recipe(steps, bool(data["safe"])))
