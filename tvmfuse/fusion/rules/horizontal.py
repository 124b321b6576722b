"""Horizontal rules: parallel operators of one kind on one input become one with wider weights.

Weights and biases are concatenated at compile time; the results are slices of one tensor, which
their readers read in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tvmfuse.fusion.pattern import Match, Mismatch
from tvmfuse.fusion.rule import Emitter
from tvmfuse.graph import Graph, Node, array_of, shape_of
from tvmfuse.hardware import Hardware
from tvmfuse.verdict import YES, Verdict, no

# What may stand behind every sibling alike and is merged with it.
_UNARY_TAIL = frozenset(
    ("nn.relu", "nn.relu6", "nn.silu", "nn.gelu", "nn.gelu_tanh", "sigmoid", "tanh", "clip",
     "nn.leakyrelu", "nn.softplus", "exp", "erf")
)  # fmt: skip
_VECTOR_TAIL = frozenset(("add", "multiply", "subtract", "divide", "maximum", "minimum"))

# Operators that read a slice in place: their templates take it as part of the index, or they
# would move the data anyway. An image is not cut for an addition: as the residual of another
# convolution it would be stored for itself.
_READS_IMAGES = frozenset(("nn.conv2d", "permute_dims", "reshape", "strided_slice", "split"))
_READS_ROWS = _READS_IMAGES | frozenset(
    ("matmul", "nn.relu", "nn.silu", "nn.gelu", "nn.gelu_tanh", "sigmoid", "tanh", "add",
     "multiply", "subtract", "divide", "nn.softmax", "nn.layer_norm", "nn.rms_norm", "astype",
     "power", "clip", "call_pure_packed")
)  # fmt: skip
_FAR = 64  # operators of the longest branch that is looked through


class Siblings:
    """Rule: operators of one kind with constant weights on one input.

    Parameters
    ----------
    op
        The operator, its first argument the shared input, its second the weight.
    output_axis
        Axis of the weight along which outputs lie.
    readers
        Operators that take a slice of the result without a copy.
    tail
        Operators behind every sibling alike, which are merged as well; None for every tail that
        no row of :data:`TAILS` has.
    seen_in
        A model in which it occurs.
    """

    category = "horizontal"
    constraints = (
        "constant weights, equal attributes and types, readers that take a slice or take its place"
    )

    def __init__(
        self,
        op: str,
        output_axis: int,
        readers: frozenset[str],
        tail: tuple[str, ...] | None = None,
        seen_in: str = "",
    ) -> None:
        self.name = _equation(op, ("f",) if tail is None else tail)
        self.root = (op,)
        self.tail, self.seen_in = tail, seen_in
        self._axis = output_axis
        self._readers = readers

    def match(self, graph: Graph, name: str) -> Match | Mismatch:
        """See :class:`tvmfuse.fusion.rule.Rule`; fires at the first sibling."""
        found = graph.memo.get(("siblings", name))
        if found is None:
            found = graph.memo[("siblings", name)] = self._any_tail(graph, name)
        if isinstance(found, Mismatch):
            return found
        tail = tuple(node.op.removeprefix("nn.") for node in found.bound["chains"][0][1:])
        if tail == self.tail or (self.tail is None and tail not in TAILS[self.root[0]]):
            return found
        said = " ".join(tail) or "nothing"
        return Mismatch(len(found.members), f"{said} stands behind them: another rule's", name)

    def _any_tail(self, graph: Graph, name: str) -> Match | Mismatch:
        root = graph.nodes[name]
        shared = root.value.args[0]
        if not isinstance(shared, relax.Var):
            return Mismatch(0, "its input is a constant", name)
        siblings = [
            graph.nodes[user]
            for user in graph.users[str(shared.name)]
            if self._alike(root, graph.nodes[user])
        ]
        if len(siblings) < 2:
            return Mismatch(1, f"no other {self.root[0]} of this form reads the same input", name)
        chains = _common_tails(graph, [[s] for s in siblings])
        ends = [c[-1].name for c in chains]
        kept = [c[0] for c in chains if not self._copied(graph, c[-1].name, ends)]
        if len(kept) < 2:
            whys = (self._copied(graph, end, ends) for end in ends)
            return Mismatch(2, next(filter(None, whys), ""), name)
        if kept[0].name != name:
            return Mismatch(1, "it belongs to an earlier sibling", kept[0].name)
        chains = _common_tails(graph, [[s] for s in kept])
        members = tuple(n.name for chain in chains for n in chain)
        outputs = tuple(chain[-1].name for chain in chains)
        return Match(members, outputs, {"chains": chains})

    def _alike(self, root: Node, other: Node) -> bool:
        """Same operator, attributes, input, type, and shape but for the output axis."""
        if other.op != root.op or not other.value.args[0].same_as(root.value.args[0]):
            return False
        mine, its = (array_of(n.value.args[1]) for n in (root, other))
        if mine is None or its is None or mine.ndim != its.ndim or mine.dtype != its.dtype:
            return False
        fixed = [
            [e for i, e in enumerate(w.shape) if i != self._axis % w.ndim] for w in (mine, its)
        ]
        return fixed[0] == fixed[1] and _same_attributes(root, other) and root.dtype == other.dtype

    def check(self, graph: Graph, match: Match, hardware: Hardware) -> Verdict:
        """Every reader must take a slice without a copy, and the operator its channels last."""
        chains = match.bound["chains"]
        first = chains[0][0]
        if first.op == "nn.conv2d":
            attrs = first.value.attrs
            if int(attrs.groups) != 1:
                return no("grouped convolutions cannot be concatenated along channels", first.name)
            if str(attrs.data_layout) != "NHWC":
                return no(f"channels are not last in {attrs.data_layout}", first.name)
        elif array_of(first.value.args[1]).ndim != 2:  # type: ignore[union-attr]
            return no("the weights differ by batch", first.name)
        for output in match.outputs:
            why = self._copied(graph, output, match.outputs)
            if why:
                return no(why, output)
        return YES

    def _copied(self, graph: Graph, output: str, outputs: Sequence[str]) -> str:
        """Why a slice in place of ``output`` would be stored for itself; empty if it would not.

        ``outputs`` are those of all siblings.
        """
        if output in graph.outputs:
            return "the model returns its part, which would be copied"
        stays = _staying(graph, outputs)
        for user in graph.users.get(output, ()):
            op = graph.nodes[user].op
            also = ("concat",) if output == stays else ("add",) if stays else ()
            if op not in self._readers and op not in also:
                return f"{op or 'a tuple'} would have its part copied"
        return ""

    def rewrite(self, graph: Graph, match: Match, builder: Emitter) -> dict[str, Any]:
        """See :class:`tvmfuse.fusion.rule.Rule`."""
        chains: list[list[Node]] = match.bound["chains"]
        first = chains[0][0].value
        weights = [array_of(chain[0].value.args[1]) for chain in chains]
        weight = _constant(np.concatenate(weights, axis=self._axis))  # type: ignore[arg-type]
        merged = builder.emit(relax.Call(first.op, [first.args[0], weight], first.attrs))
        for step in zip(*(chain[1:] for chain in chains), strict=True):
            merged = builder.emit(_merged_tail(step, merged))
        shape = shape_of(merged)
        assert shape is not None
        parts, begin = {}, 0
        for chain in chains:
            width = (chain[-1].shape or (0,))[-1]
            part = relax.op.strided_slice(
                merged, axes=[len(shape) - 1], begin=[begin], end=[begin + width]
            )
            parts[chain[-1].name] = builder.emit(part)
            begin += width
        return parts


def _staying(graph: Graph, outputs: Sequence[str]) -> str:
    """The output that a concatenation need not copy, since it takes the merged tensor's place.

    Before: ``s1, s2 = split(m); c = concat(f(s1), s2)``, where ``f(s1)`` is as wide as ``s1``
    After:  ``f(s1)`` is written over ``s1``, and ``m`` is ``c``

    Who reads ``s1`` does it on the way to ``f(s1)``, and not in the kernel that writes ``f(s1)``:
    `tvmfuse.fusion.rules.base` looks at the kernels.
    """
    if len(outputs) != 2:
        return ""
    for place, output in enumerate(outputs):
        other = outputs[1 - place]
        for user in graph.users.get(output, ()):
            node = graph.nodes[user]
            if node.op != "concat" or len(node.operands) != 2:
                continue
            names = [str(getattr(o, "name", "")) for o in node.operands]
            rank = len(node.shape or ())
            last = int(node.value.attrs.axis) % rank == rank - 1 if rank else False
            wide = shape_of(node.operands[1 - place]) == graph.nodes[other].shape
            if last and wide and names[place] == output:
                return output if _reads_early(graph, names[1 - place], other) else ""
    return ""


def _reads_early(graph: Graph, name: str, source: str) -> bool:
    """Whether all readers of ``source`` are done before the kernel of ``name`` begins."""
    readers = set(graph.users.get(source, ()))
    node = graph.nodes.get(name)
    while node is not None and node.op != "nn.conv2d":
        if node.name in readers:
            return False
        reads = [str(o.name) for o in node.operands if isinstance(o, relax.Var)]
        alone = [read for read in reads if graph.sole_user(read) == node.name]
        node = graph.nodes.get(alone[0]) if len(alone) == 1 else None
    if node is None or node.name in readers:
        return False
    seen: set[str] = set()
    left = [name]
    while left and len(seen) < _FAR:
        node = graph.nodes.get(left.pop())
        if node is not None and node.name not in seen and node.name != source:
            seen.add(node.name)
            left += [str(o.name) for o in node.operands if isinstance(o, relax.Var)]
    return readers <= seen


def _same_attributes(one: Node, other: Node) -> bool:
    mine, its = one.value.attrs, other.value.attrs
    return str(mine) == str(its)


def _common_tails(graph: Graph, chains: list[list[Node]]) -> list[list[Node]]:
    """Extend all chains alike, as long as each value has one reader and all readers agree."""
    while True:
        steps = []
        for chain in chains:
            user = graph.sole_user(chain[-1].name)
            if user is None:
                return chains
            steps.append(graph.nodes[user])
        if not all(_mergeable_tail(s, c[-1], steps[0]) for s, c in zip(steps, chains, strict=True)):
            return chains
        if len({s.name for s in steps}) < len(steps):
            return chains
        chains = [[*chain, step] for chain, step in zip(chains, steps, strict=True)]


def _mergeable_tail(step: Node, before: Node, first: Node) -> bool:
    if not step.op or step.op != first.op or not _same_attributes(step, first):
        return False
    if step.op in _UNARY_TAIL:
        return all(isinstance(o, relax.Var) for o in step.operands) and len(step.operands) == 1
    if step.op not in _VECTOR_TAIL or len(step.value.args) != 2:
        return False
    side = _constant_side(step)
    if side is None or side != _constant_side(first) or step.shape != before.shape:
        return False
    values = array_of(step.value.args[side])
    return values is not None and values.size == (step.shape or (0,))[-1] == values.shape[-1]


def _constant_side(step: Node) -> int | None:
    sides = [i for i, a in enumerate(step.value.args) if isinstance(a, GenericConst)]
    return sides[0] if len(sides) == 1 else None


def _merged_tail(step: tuple[Node, ...], merged: relax.Expr) -> relax.Call:
    first = step[0].value
    if step[0].op in _UNARY_TAIL:
        return relax.Call(first.op, [merged, *first.args[1:]], first.attrs)
    side = _constant_side(step[0])
    assert side is not None
    vectors = [array_of(node.value.args[side]) for node in step]
    vector = _constant(np.concatenate([v.reshape(-1) for v in vectors if v is not None]))
    arguments = [merged, vector] if side == 1 else [vector, merged]
    return relax.Call(first.op, arguments, first.attrs)


def _constant(values: np.ndarray) -> GenericConst:
    return relax.const(np.ascontiguousarray(values), str(values.dtype))


def _equation(op: str, tail: tuple[str, ...]) -> str:
    def behind(text: str) -> str:
        for step in tail:
            text = f"{step}({text})"
        return text

    short = op.removeprefix("nn.")
    parts = ", ".join(behind(f"{short}(x, w{i})") for i in (1, 2))
    return f"{parts} => split({behind(f'{short}(x, concat(w1, w2))')})"


# Operator -> tail that is merged with it -> where it occurs.
TAILS: dict[str, dict[tuple[str, ...], str]] = {
    "matmul": {
        ("add",): "BERT, ViT, Swin: Q/K/V with biases",
        (): "Llama: Q/K/V and gate/up without biases",
    },
    "nn.conv2d": {
        ("add", "relu"): "Inception, GoogLeNet: 1x1 convolutions of one block",
        ("add",): "region proposal heads",
        ("add", "silu"): "YOLOv5: the two branches of a C3 block",
    },
}
_SHAPES = {"matmul": (-1, _READS_ROWS), "nn.conv2d": (0, _READS_IMAGES)}

HORIZONTAL = tuple(
    Siblings(op, *_SHAPES[op], tail, model)
    for op, tails in TAILS.items()
    for tail, model in (*tails.items(), (None, "tails that no row names"))
)
