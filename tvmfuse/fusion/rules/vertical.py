"""Vertical rules: one operator joins the group of an anchor, behind it or in front of it.

A rule is one row: anchor, operator, side. Its name is its equation, ``relu(conv2d(x, w))``. The
planner grows a group as long as rules allow the next step, so ``relu(add(conv2d(x, w) + bias, r))``
is three rules in a row; which sequences occur is a matter of the models, not of the table. An
operator that a rule of the library names joins by that rule only: switched off, it stays outside.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvmfuse.fusion.rules.vertical_table import EPILOGUES, PAIRS, PROLOGUES
from tvmfuse.fusion.step import ANCHOR, BROADCAST, INJECTIVE, OPAQUE, Step
from tvmfuse.verdict import YES, Verdict, no

EPILOGUE, PROLOGUE = "epilogue", "prologue"
SIDES = (EPILOGUE, PROLOGUE)

# How an anchor is written in an equation.
ANCHORS = {
    "conv1d": "conv1d(x, w)",
    "conv2d": "conv2d(x, w)",
    "conv3d": "conv3d(x, w)",
    "depthwise": "depthwise(x, w)",
    "grouped": "grouped_conv2d(x, w)",
    "conv1d_transpose": "conv1d_transpose(x, w)",
    "conv2d_transpose": "conv2d_transpose(x, w)",
    "conv3d_transpose": "conv3d_transpose(x, w)",
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

ANY = "operators that no row names"

# Their templates read every value many times: only what is a part of the index joins in front.
_PRODUCTS = frozenset(("conv2d", "depthwise", "grouped", "dense", "matmul", "attention"))


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
    seen_in
        A model in which it occurs.
    dtypes
        Element types of the operator's result for which it holds; empty for all.
    ranks
        Least and largest rank of the operator's result.
    anchors
        Whether the operator may be an anchor itself. Of the library's only those of ``PAIRS`` say
        so (`tvmfuse.fusion.norms` judges them); a user's rule forces anchors into one kernel, and
        only measuring tells whether that pays.
    """

    anchor: str
    op: str
    side: str = EPILOGUE
    seen_in: str = ""
    dtypes: tuple[str, ...] = ()
    ranks: tuple[int, int] = (0, 16)
    anchors: bool = False
    category: str = "vertical"

    @property
    def name(self) -> str:
        """The rule's equation."""
        core = ANCHORS.get(self.anchor, f"{self.anchor}(x)")
        op = "f" if self.op == "*" else self.op
        if self.side == PROLOGUE:
            inner, rest = core.split("(", 1)
            first, more = [*rest.split(",", 1), ""][:2]
            return f"{inner}({op}({first.rstrip(')')})" + (f",{more}" if more else ")")
        return f"{op}({core})"

    @property
    def changes_layout(self) -> bool:
        """Whether it lets a convolution read or write an image in another layout."""
        return (self.anchor, self.op) == ("conv2d", "transpose")

    @property
    def key(self) -> tuple[str, str, str]:
        """What the planner looks a rule up by."""
        return self.anchor, self.op, self.side

    @property
    def constraints(self) -> str:
        """What it asks for, in words."""
        said = ["result read by this operator alone"]
        if self.changes_layout and self.side == PROLOGUE:
            said.append("from channels first, up to 4 of them")
        elif self.changes_layout:
            said.append("to channels first, 3x3, stride 1, whole vectors of channels")
        elif self.side == PROLOGUE and self.anchor in _PRODUCTS:
            said.append("a part of the index")
        elif self.anchors and (self.anchor, self.op) in PAIRS:
            said.append("along the last axis, no loss by whole rows in one piece")
        elif self.anchor == "elementwise":
            said.append("element-wise or a move")
        else:
            said.append("element-wise")
        said += ["may be an anchor itself"] if self.anchors else []
        said += [" or ".join(self.dtypes)] if self.dtypes else []
        if self.ranks != (0, 16):
            said.append(f"rank {self.ranks[0]} to {self.ranks[1]}")
        return ", ".join(said)

    def check(self, step: Step, inner: bool = False) -> Verdict:
        """Judge one step.

        Parameters
        ----------
        step
            The operator that wants to join.
        inner
            Whether it lies inside a chain that joins as a whole: its form is judged by the last.
        """
        if self.dtypes and step.dtype not in self.dtypes:
            return no(f"{step.op} is {step.dtype}, not {' or '.join(self.dtypes)}", step.name)
        if not self.ranks[0] <= step.rank <= self.ranks[1] and self.ranks != (0, 16):
            least, most = self.ranks
            return no(f"{step.op} has rank {step.rank}, not {least} to {most}", step.name)
        if self.changes_layout and step.layout:
            return no(step.layout, step.name)
        product = self.side == PROLOGUE and self.anchor in _PRODUCTS
        moves = product or self.changes_layout or self.anchor == "elementwise"
        most = ANCHOR if self.anchors else INJECTIVE if moves else BROADCAST
        if step.kind > most and not inner:
            what = "opaque" if step.kind == OPAQUE else "not element-wise"
            return no(f"{step.op} is {what}", step.name)
        if step.elements > step.before and step.costly:
            said = f"compute {step.before} values for each of {step.elements}"
            return no(f"{step.op} would {said}", step.name)
        return YES


def _table() -> tuple[VerticalRule, ...]:
    rows = [
        VerticalRule(
            anchor, op, side, model, PAIRS.get((anchor, op), ()), anchors=(anchor, op) in PAIRS
        )
        for side, table in ((EPILOGUE, EPILOGUES), (PROLOGUE, PROLOGUES))
        for anchor, ops in table.items()
        for op, model in ops.items()
    ]
    return (*rows, *(VerticalRule(anchor, "*", EPILOGUE, ANY) for anchor in ANCHORS))


VERTICAL: tuple[VerticalRule, ...] = _table()
