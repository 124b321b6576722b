"""Compound rules: several anchors become one kernel."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.ir import GenericConst

from tvmfuse.fusion.attention_call import AttentionCall, Recipe, ScoreStep, make_call
from tvmfuse.fusion.pattern import Any as Expr
from tvmfuse.fusion.pattern import Call, Constant, Either, Match, Mismatch, match
from tvmfuse.fusion.rule import Emitter
from tvmfuse.graph import Graph, Node, array_of, dtype_of, shape_of
from tvmfuse.hardware import Hardware
from tvmfuse.verdict import YES, Verdict, no

_FLOATS = ("float32", "float16", "bfloat16")
_FAR_BELOW = -1e30  # a mask that adds this leaves no weight in float32

# PyTorch's guard for rows without a visible key: all scores are -inf. Its own core decomposition,
# which programs saved in that form hold, says that not any score is not.
_HIDDEN = Call("equal", Expr("scores"), Constant("lowest"))
_NO_KEY = Either(
    Call("greater", Call("min", Call("astype", _HIDDEN)), Constant("none")),
    Call("logical_not", Call("greater", Call("max", Call("astype", Call(
        "logical_not", _HIDDEN))), Constant("none"))),
)  # fmt: skip
_SAFE = Call(
    "where",
    _NO_KEY,
    Either(Call(("full_like", "zeros_like"), bind="zero"), Constant("zero")),
    Call("nn.softmax", Expr("scores"), bind="softmax"),
)


@dataclass(frozen=True)
class _Walk:
    """The way from the weights back to the product of scores; what came last stands first.

    Parameters
    ----------
    members
        Nodes passed.
    steps, masks
        Steps on the scores with the mask that each reads, or None.
    shapes
        Shapes of the reshapes passed.
    safe
        Whether the softmax is guarded.
    """

    members: tuple[str, ...]
    steps: tuple[ScoreStep, ...] = ()
    masks: tuple[Any, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    safe: bool = False

    def passing(self, node: Node, **change: Any) -> _Walk:
        """The walk one node further."""
        return dataclasses.replace(self, members=(*self.members, node.name), **change)


class AttentionRule:
    """Rule: two products around a softmax, with scales and masks between.

    Parameters
    ----------
    form
        Kinds of the steps on the scores, in order, and ``"safe"`` at the end where rows without
        a visible key give zeros; None for every form that no row of :data:`FORMS` has.
    seen_in
        A model in which it occurs.
    """

    category = "compound"
    root = ("matmul",)

    def __init__(self, form: tuple[str, ...] | None = None, seen_in: str = "") -> None:
        self.form, self.seen_in = form, seen_in
        self.name = _equation(("scale", "mask") if form is None else form)
        self.constraints = "float operands of one type, static shapes, queries and keys computed"

    def match(self, graph: Graph, name: str) -> Match | Mismatch:
        """See :class:`tvmfuse.fusion.rule.Rule`; ``name`` is the product with the values."""
        found = graph.memo.get(("attention", name))
        if found is None:
            found = graph.memo[("attention", name)] = self._any_form(graph, name)
        if isinstance(found, Mismatch):
            return found
        form = form_of(found.bound["call"].recipe)
        if form == self.form or (self.form is None and form not in FORMS):
            return found
        steps = " ".join(form) or "untouched"
        return Mismatch(len(found.members), f"the scores are {steps}: another rule's form", name)

    @staticmethod
    def _any_form(graph: Graph, name: str) -> Match | Mismatch:
        root = graph.nodes[name]
        weights, values = root.value.args[:2]
        if isinstance(values, GenericConst):
            return Mismatch(0, "its second operand is constant: a dense layer", name)
        found = _softmax(graph, weights, _Walk((name,)))
        if isinstance(found, Mismatch):
            return found
        walk, product = found
        q, k = product.value.args[:2]
        steps: list[ScoreStep] = []
        masks: list[Any] = []
        for step, mask in zip(reversed(walk.steps), reversed(walk.masks), strict=True):
            steps.append(step if mask is None else dataclasses.replace(step, mask=len(masks)))
            masks += [] if mask is None else [mask]
        call = AttentionCall(q, k, values, tuple(masks), Recipe(tuple(steps), walk.safe))
        members = tuple(dict.fromkeys(walk.members))
        return Match(members, (name,), {"call": call, "scores": product})

    def check(self, graph: Graph, match: Match, hardware: Hardware) -> Verdict:
        """Types and shapes that the kernel takes."""
        call: AttentionCall = match.bound["call"]
        scores: Node = match.bound["scores"]
        out = match.outputs[0]
        for operand in (call.q, call.k, call.v):
            dtype, shape = dtype_of(operand), shape_of(operand)
            if dtype not in _FLOATS:
                return no(f"no attention kernel for {dtype}", str(getattr(operand, "name", out)))
            if dtype != dtype_of(call.q):
                return no(f"operands of types {dtype_of(call.q)} and {dtype}", out)
            if shape is None or len(shape) < 2 or 0 in shape:
                return no(f"an operand of shape {shape}", out)
        if isinstance(call.k, GenericConst) or isinstance(call.q, GenericConst):
            return no("its queries or keys are constant: a dense layer", scores.name)
        if graph.nodes[out].shape is None or scores.shape is None:
            return no("its shape is not static", out)
        if dtype_of(graph.nodes[out].var) not in _FLOATS:
            return no("its result is not of a type that kernels store", out)
        for mask in call.masks:
            if dtype_of(mask) not in (*_FLOATS, "bool"):
                return no(f"a mask of type {dtype_of(mask)}", out)
        return YES

    def rewrite(self, graph: Graph, match: Match, builder: Emitter) -> dict[str, Any]:
        """See :class:`tvmfuse.fusion.rule.Rule`."""
        node = graph.nodes[match.outputs[0]]
        assert node.shape is not None
        return {node.name: builder.emit(make_call(match.bound["call"], node.shape, node.dtype))}


def _softmax(graph: Graph, weights: Any, walk: _Walk) -> tuple[_Walk, Node] | Mismatch:
    """Walk back over a softmax, with a guard or a cast behind it, and over what it reads."""
    node = graph.node(weights)
    while node is not None and node.op == "astype" and node.dtype in _FLOATS:
        walk = walk.passing(node)
        node = graph.node(node.value.args[0])
    if node is not None and node.op == "where":
        guard = match(_SAFE, graph, node.name)
        if isinstance(guard, Mismatch):
            return Mismatch(1 + guard.progress, guard.reason, guard.culprit)
        zero, softmax = guard.bound["zero"], graph.node(guard.bound["softmax"])
        made = graph.node(zero)
        fill = (
            0.0
            if made is not None and made.op == "zeros_like"
            else _uniform_of(zero if made is None else made.value.args[1])
        )
        if _uniform_of(guard.bound["none"]) != 0.0:
            return Mismatch(2, "its guard does not count hidden keys", node.name)
        if _uniform_of(guard.bound["lowest"]) != -math.inf or fill != 0.0:
            return Mismatch(2, "it guards against another value than -inf", node.name)
        walk = dataclasses.replace(walk, members=(*walk.members, *guard.members), safe=True)
        node = softmax
    if node is None:
        return Mismatch(0, "nn.softmax expected, an input or a constant found")
    if node.op != "nn.softmax":
        return Mismatch(1, f"nn.softmax expected, {node.op} found", node.name)
    rank = len(node.shape or ())
    if rank < 2 or int(node.value.attrs.axis) % rank != rank - 1:
        return Mismatch(2, "the softmax is not along the keys", node.name)
    return _scores(graph, node.value.args[0], walk.passing(node))


def _scores(graph: Graph, expr: Any, walk: _Walk) -> tuple[_Walk, Node] | Mismatch:
    """Walk back over scales, masks, casts and reshapes to the product of scores."""
    node, progress = graph.node(expr), len(walk.members)
    if node is None or node.shape is None:
        return Mismatch(progress, "matmul expected, an input or a constant found")
    if node.op == "matmul":
        return walk.passing(node), node
    if node.op == "astype" and node.dtype in _FLOATS:
        return _scores(graph, node.value.args[0], walk.passing(node))
    if node.op == "reshape":
        source = shape_of(node.value.args[0])
        if source is None or source[-2:] != node.shape[-2:]:
            return Mismatch(progress, "a reshape cuts the scores", node.name)
        passed = walk.passing(node, shapes=(node.shape, *walk.shapes))
        return _scores(graph, node.value.args[0], passed)
    furthest = Mismatch(progress, f"{node.op} is neither scale nor mask of scores", node.name)
    for operand, step, mask in _readings(node):
        if shape_of(operand) != node.shape:
            continue
        if mask is not None:
            step = dataclasses.replace(step, shapes=(node.shape, *walk.shapes))
        further = walk.passing(node, steps=(*walk.steps, step), masks=(*walk.masks, mask))
        found = _scores(graph, operand, further)
        if not isinstance(found, Mismatch):
            return found
        if found.culprit and found.progress > furthest.progress:
            furthest = found
    return furthest


def _readings(node: Node) -> list[tuple[Any, ScoreStep, Any]]:
    """Ways to read a node as a step: which operand is the scores, the step, and its mask."""
    args = node.value.args
    if node.op == "divide":
        factor = _uniform_of(args[1])
        return [(args[0], ScoreStep("scale", 1.0 / factor), None)] if factor else []
    if node.op in ("multiply", "add"):
        read = _scaled if node.op == "multiply" else _added
        pairs = ((args[0], args[1]), (args[1], args[0]))
        return [(scores, *read(other)) for scores, other in pairs]
    if node.op == "where":
        ways = ((args[1], args[2], "where"), (args[2], args[1], "unless"))
        fills = [(scores, _uniform_of(fill), kind) for scores, fill, kind in ways]
        return [(s, *_chosen(args[0], kind, fill)) for s, fill, kind in fills if fill is not None]
    return []


def _scaled(factor: Any) -> tuple[ScoreStep, Any]:
    value = _uniform_of(factor)
    return (ScoreStep("multiply"), factor) if value is None else (ScoreStep("scale", value), None)


def _added(mask: Any) -> tuple[ScoreStep, Any]:
    """A mask that is added: a causal one if it is constant and far below zero there."""
    values = _floats(mask)
    if values is not None:
        hidden = values < _FAR_BELOW
        lowest = values[hidden]
        if lowest.size and np.all(lowest == lowest[0]) and not values[~hidden].any():
            offset = _causal_offset(~hidden)
            if offset is not None:
                return ScoreStep("causal", float(lowest[0]), offset), None
    return ScoreStep("add"), mask


def _chosen(mask: Any, kind: str, value: float) -> tuple[ScoreStep, Any]:
    """Scores where a mask allows, else ``value``."""
    values = array_of(mask)
    if values is not None:
        offset = _causal_offset(values if kind == "where" else ~values)
        if offset is not None:
            return ScoreStep("causal", value, offset), None
    return ScoreStep(kind, value), mask


def _causal_offset(visible: np.ndarray) -> int | None:
    """``c`` where query i sees the keys up to i + c; None for any other mask."""
    if visible.ndim < 2 or visible.size != visible.shape[-1] * visible.shape[-2]:
        return None
    plane = visible.reshape(visible.shape[-2:])
    offset = int(plane[0].sum()) - 1
    triangle = np.tri(*plane.shape, offset, dtype=bool)
    return offset if np.array_equal(plane, triangle) else None


def _uniform_of(expr: Any) -> float | None:
    """The value of a constant all of whose elements are equal."""
    values = _floats(expr)
    if values is None or values.size == 0:
        return None
    first = values.reshape(-1)[0]
    return float(first) if np.all(values == first) else None


def _floats(expr: Any) -> np.ndarray | None:
    """The values of a constant of a float or integer type."""
    values = array_of(expr)
    if values is not None and values.dtype.name == "bfloat16":
        return values.astype(np.float32)
    return values if values is not None and values.dtype.kind in "fiu" else None


def form_of(recipe: Recipe) -> tuple[str, ...]:
    """Kinds of the steps on the scores; neighbouring scales count as one."""
    kinds: list[str] = []
    for step in recipe.steps:
        if step.kind != "scale" or kinds[-1:] != ["scale"]:
            kinds.append(step.kind)
    return (*kinds, "safe") if recipe.safe else tuple(kinds)


def _equation(form: tuple[str, ...]) -> str:
    scores = "matmul(q, kᵀ)"
    for kind in form:
        scores = scores if kind == "safe" else f"{kind}({scores})"
    weights = "safe_softmax" if "safe" in form else "softmax"
    return f"matmul({weights}({scores}), v)"


# Form of the scores -> where it occurs.
FORMS: dict[tuple[str, ...], str] = {
    ("scale", "add"): "BERT, hand-written: scores / sqrt(d) + mask",
    ("add",): "T5: position bias",
    (): "ViT: F.scaled_dot_product_attention without a mask",
    ("scale",): "DeiT, hand-written: scores * scale",
    ("causal",): "Llama: F.scaled_dot_product_attention(is_causal=True)",
    ("scale", "causal"): "nanoGPT, hand-written",
    ("add", "add"): "Swin: position bias and the mask of shifted windows",
    ("multiply", "add"): "Swin v2: cosine attention with a learnt scale",
    ("multiply", "add", "add"): "Swin v2, shifted windows",
    ("scale", "where"): "GPT-2, hand-written: a mask that the caller passes",
    ("where",): "GPT-J: scaled queries, a mask that the caller passes",
    ("scale", "unless"): "The Annotated Transformer: masked_fill",
    ("add", "safe"): "RoBERTa: F.scaled_dot_product_attention with a mask",
    ("where", "safe"): "BERT: F.scaled_dot_product_attention with a boolean mask",
}

COMPOUND = (*(AttentionRule(form, model) for form, model in FORMS.items()), AttentionRule())
