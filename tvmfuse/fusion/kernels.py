"""Read-only facts about the kernels of a lowered module, as the planner needs them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm
from tvm import relax
from tvm.tirx import Add, IntImm, PrimFunc

from tvmfuse.fusion.rules.vertical import ANCHORS
from tvmfuse.fusion.step import ANCHOR, OPAQUE, REDUCTION
from tvmfuse.graph import Graph, Node, dtype_of, node_bytes, node_flops, shape_of
from tvmfuse.schedules.anchor import ATTR, Conv2d, from_text
from tvmfuse.schedules.base import blocks, new_schedule
from tvmfuse.schedules.cpu.contraction import by_planes
from tvmfuse.schedules.cpu.winograd_rows import by_rows

# What the names of kernels mean; a name that is not here stands for itself, without "tir_".
_SYNONYMS = {"strided_slice": "slice", "leakyrelu": "leaky_relu", "conv1d_ncw": "conv1d"}
_ANCHOR_NAMES = {"avg_pool2d": "avg_pool", "adaptive_avg_pool": "avg_pool", "take": "embedding"}
PRODUCTS = frozenset(("conv2d", "dense", "matmul", "attention"))
_BINARY = frozenset(("add", "multiply", "subtract", "divide", "maximum", "minimum", "power"))


@dataclass(frozen=True)
class Kernel:
    """One ``call_tir`` of ``main`` that returns one tensor.

    Parameters
    ----------
    name
        The variable that it binds.
    op
        What it computes, e.g. ``"conv2d"``.
    step
        What it is as a step behind an anchor: as ``op``, but a binary operator with a constant
        or a smaller operand is ``"bias"`` (add), ``"scale"`` (multiply) or ``"…_const"``.
    kind
        TVM's OpPatternKind.
    elements
        Elements of the result.
    flops
        Arithmetic operations of its definition.
    moved
        Bytes that it reads and writes for itself.
    """

    name: str
    op: str
    step: str
    kind: int
    elements: int
    flops: float = 0.0
    moved: int = 0


class KernelGraph(Graph):
    """A lowered ``main``: which bindings are kernels, and of what kind."""

    def __init__(self, mod: tvm.IRModule) -> None:
        annotated = relax.transform.AnnotateTIROpPattern()(mod)
        super().__init__(annotated)
        self._functions: dict[Any, PrimFunc] = dict(annotated.functions_items())
        self.kernels: dict[str, Kernel] = {}
        for node in self.nodes.values():
            if is_kernel(node.value):
                self.kernels[node.name] = self._kernel(node)

    def _kernel(self, node: Node) -> Kernel:
        func = self.function(node.name)
        attrs = func.attrs or {}
        kind = int(attrs["op_pattern"]) if "op_pattern" in attrs else OPAQUE
        op = node.op.removeprefix("tir_")
        op = _SYNONYMS.get(op, op)
        elements = math.prod(node.shape) if node.shape is not None else 0
        step = self._step(node, op)
        flops = node_flops(node)
        return Kernel(node.name, op, step, kind, elements, flops, node_bytes(self, node))

    def function(self, name: str) -> PrimFunc:
        """The PrimFunc that the kernel ``name`` calls."""
        return self._functions[self.nodes[name].value.args[0]]

    def slice_begin(self, name: str) -> tuple[int, ...]:
        """Where a slice without steps begins along each axis; empty for another kernel."""
        return _slice_begin(self.function(name))

    @staticmethod
    def _step(node: Node, op: str) -> str:
        """Tell a bias from a residual: does the other operand have as many elements?"""
        if op not in _BINARY:
            return op
        full = [
            o
            for o in node.operands
            if isinstance(o, relax.Var) and shape_of(o) == node.shape and _alike(o, node)
        ]
        if len(full) > 1:
            return op
        return {"add": "bias", "multiply": "scale"}.get(op, f"{op}_const")

    def anchor_kind(self, name: str) -> str:
        """The word for an anchor in the rules; ``"other"`` for one that they do not name."""
        record = self.record(name)
        if isinstance(record, Conv2d) and record.groups > 1:
            return "depthwise" if record.groups == record.C == record.O else "grouped"
        op = _ANCHOR_NAMES.get(self.kernels[name].op, self.kernels[name].op)
        return op if op in ANCHORS else "other"

    def layout_change(self, name: str, anchor: str) -> str:
        """Why a convolution cannot write what a transpose behind it does; empty where it can.

        Parameters
        ----------
        name
            The transpose.
        anchor
            The convolution.
        """
        record = self.record(anchor)
        axes = permutation(self.function(name))
        if axes != (0, 3, 1, 2):
            return f"its axes are {axes}, not channels last to channels first"
        if not isinstance(record, Conv2d) or not by_rows(record):
            return "the convolution is none of 3x3, stride 1, with whole vectors of channels"
        return ""

    def layout_read(self, name: str, anchor: str) -> str:
        """Why a convolution cannot read through a transpose; empty where it can.

        Parameters
        ----------
        name
            The transpose.
        anchor
            The convolution that reads its result.
        """
        record = self.record(anchor)
        axes = permutation(self.function(name))
        if axes != (0, 2, 3, 1):
            return f"its axes are {axes}, not channels first to channels last"
        if not isinstance(record, Conv2d) or not by_planes(record):
            return "the convolution is none without groups of up to 4 channels"
        return ""

    def record(self, name: str) -> Any:
        """What kind of product a kernel is (`tvmfuse.schedules.anchor`); None for others."""
        attrs = self.function(name).attrs or {}
        return from_text(str(attrs[ATTR])) if ATTR in attrs else None

    @cached_property
    def row_reductions(self) -> tuple[str, ...]:
        """Kernels that reduce along their innermost axes only: softmax, norms, last-axis sums.

        Products with their own templates are not among them.
        """
        found = [
            k.name
            for k in self.kernels.values()
            if k.kind in (REDUCTION, ANCHOR) and k.op not in PRODUCTS
        ]
        rows: dict[str, bool] = {}  # many kernels call one function
        for name in found:
            function = str(self.nodes[name].value.args[0].name_hint)
            if function not in rows:
                rows[function] = _reduces_rows(self.function(name))
        return tuple(n for n in found if rows[str(self.nodes[n].value.args[0].name_hint)])


def _alike(operand: Any, node: Node) -> bool:
    """Whether an operand has the result's type, or is stored narrower or wider than computed."""
    types = (dtype_of(operand), node.dtype)
    return types[0] == types[1] or all("float" in dtype for dtype in types)


def is_kernel(value: Any) -> bool:
    """Whether an expression is a ``call_tir`` that returns one tensor."""
    called = (
        isinstance(value, relax.Call) and str(getattr(value.op, "name", "")) == "relax.call_tir"
    )
    return called and isinstance(value.ty, relax.TensorType)


def permutation(func: PrimFunc) -> tuple[int, ...]:
    """Axes of a transpose as ``permute_dims`` names them; empty for another kernel."""
    axes, read = _move(func)
    found = [[i for i, index in enumerate(read) if index.same_as(axis)] for axis in axes]
    return () if any(len(places) != 1 for places in found) else tuple(p[0] for p in found)


def _slice_begin(func: PrimFunc) -> tuple[int, ...]:
    """Where a slice without steps begins along each axis; empty for another kernel."""
    begins = [_begin(index, axis) for axis, index in zip(*_move(func), strict=True)]
    return () if None in begins else tuple(b for b in begins if b is not None)


def _move(func: PrimFunc) -> tuple[list[Any], list[Any]]:
    """Axes of a result, and the indices at which its element is read of one tensor.

    Both are empty unless the kernel is one block without sums, and they are equally many.
    """
    sch = new_schedule(func)
    found = blocks(sch)
    if len(found) != 1 or set(found[0].kinds) != {"S"}:
        return [], []
    stmt = sch.get(found[0].rv)
    if len(stmt.reads) != 1 or len(stmt.reads[0].region) != len(stmt.iter_vars):
        return [], []
    return [v.var for v in stmt.iter_vars], [r.min for r in stmt.reads[0].region]


def _begin(index: Any, axis: Any) -> int | None:
    """The constant that an index adds to an axis; None for another index."""
    if index.same_as(axis):
        return 0
    if isinstance(index, Add) and index.a.same_as(axis) and isinstance(index.b, IntImm):
        return int(index.b)
    return None


def _reduces_rows(func: PrimFunc) -> bool:
    reducing = [b.kinds for b in blocks(new_schedule(func)) if "R" in b.kinds]
    return bool(reducing) and all(not k.lstrip("S").strip("R") for k in reducing)
