"""Vertical rules: one operator joins the group of an anchor, behind it or in front of it.

A rule is one row: anchor, operator, side. Its name is its equation, ``relu(conv2d(x, w))``. The
planner grows a group as long as rules allow the next step, so ``relu(add(conv2d(x, w) + bias, r))``
is three rules in a row; which sequences occur is a matter of the models, not of the table.
"""

from __future__ import annotations

from dataclasses import dataclass

EPILOGUE, PROLOGUE = "epilogue", "prologue"

# How an anchor is written in an equation.
ANCHORS = {
    "conv1d": "conv1d(x, w)",
    "conv2d": "conv2d(x, w)",
    "conv3d": "conv3d(x, w)",
    "depthwise": "depthwise(x, w)",
    "grouped": "grouped_conv2d(x, w)",
    "conv2d_transpose": "conv2d_transpose(x, w)",
    "dense": "dense(x, w)",
    "matmul": "matmul(x, y)",
    "attention": "attention(q, k, v)",
    "max_pool": "max_pool(x)",
    "avg_pool": "avg_pool(x)",
    "mean": "mean(x)",
    "sum": "sum(x)",
    "max": "max(x)",
    "softmax": "softmax(x)",
    "log_softmax": "log_softmax(x)",
    "layer_norm": "layer_norm(x)",
    "group_norm": "group_norm(x)",
    "instance_norm": "instance_norm(x)",
    "rms_norm": "rms_norm(x)",
    "resize": "resize(x)",
    "embedding": "embedding(ids)",
    "elementwise": "f(x)",
    "other": "g(x)",
}

# Operators behind an anchor, by how often they occur in the zoo. ``bias`` and ``scale`` are an
# addition and a multiplication with a constant or a smaller tensor, ``add`` and ``multiply`` with
# a tensor of the same shape (a residual, a gate).
_EPILOGUES = (
    "bias", "relu", "add", "scale", "clip", "silu", "gelu", "gelu_tanh", "sigmoid", "multiply",
    "divide_const", "tanh", "leaky_relu", "prelu", "hardswish", "hardsigmoid", "mish", "elu",
    "selu", "softplus", "exp", "sqrt", "rsqrt", "erf", "abs", "negative", "power_const",
    "subtract_const", "subtract", "divide", "maximum", "minimum", "maximum_const",
    "minimum_const", "round", "floor", "cast", "where", "slice",
)  # fmt: skip

# Operators in front of an anchor that its template computes while it reads. Products read every
# value many times and take a slice only, which costs them nothing.
_PROLOGUES = {
    "conv2d": ("slice",),
    "depthwise": ("slice",),
    "grouped": ("slice",),
    "dense": ("slice",),
    "softmax": ("scale", "bias", "add", "divide_const", "where", "cast", "multiply"),
    "log_softmax": ("scale", "bias", "add", "cast"),
    "layer_norm": ("add", "bias", "scale", "cast", "multiply"),
    "mean": ("power_const", "multiply", "abs", "subtract", "cast"),
    "sum": ("power_const", "multiply", "abs", "subtract", "cast", "exp"),
    "max": ("abs", "scale", "bias"),
}


@dataclass(frozen=True)
class VerticalRule:
    """One operator may join the group of one kind of anchor.

    Parameters
    ----------
    anchor
        Kind of the group's anchor.
    op
        The operator that joins; ``"*"`` for any element-wise one that no other rule names.
    side
        :data:`EPILOGUE` or :data:`PROLOGUE`.
    """

    anchor: str
    op: str
    side: str = EPILOGUE
    category: str = "vertical"

    @property
    def name(self) -> str:
        """The rule's equation."""
        core = ANCHORS.get(self.anchor, f"{self.anchor}(x)")
        op = "f" if self.op == "*" else self.op
        if self.side == PROLOGUE:
            return core.replace("(x", f"({op}(x)", 1)
        return f"{op}({core})"


def _table() -> tuple[VerticalRule, ...]:
    behind = [VerticalRule(a, op) for a in ANCHORS for op in (*_EPILOGUES, "*")]
    front = [VerticalRule(a, op, PROLOGUE) for a, ops in _PROLOGUES.items() for op in ops]
    return (*behind, *front)


VERTICAL: tuple[VerticalRule, ...] = _table()
