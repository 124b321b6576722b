"""Rewrites of the exported graph that keep TVM's importer from being silently wrong.

Each rewrite leaves a graph of the same meaning in which the form that the importer gets wrong
no longer occurs. What cannot be rewritten cheaply is refused by ``known_faults``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from tvmfuse.frontend.half import widen_halves
from tvmfuse.frontend.rewriting import call_before, operator_name
from tvmfuse.frontend.scalars import ALONG_A_DIMENSION, WITH_COMPANIONS, widen_scalar

_ATEN = torch.ops.aten

_ARITHMETIC = ("add", "sub", "mul", "rsub", "pow", "remainder", "fmod", "floor_divide", "div",
               "maximum", "minimum", "atan2")  # fmt: skip
# What arithmetic of booleans means; TVM has no code for it.
_LOGICAL = {
    "add": _ATEN.logical_or.default,
    "mul": _ATEN.logical_and.default,
    "maximum": _ATEN.logical_or.default,
    "minimum": _ATEN.logical_and.default,
}
_OF_FLOATS = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "erf", "exp", "log",
              "log10", "log2", "rsqrt", "sigmoid", "sin", "sqrt", "tan", "tanh")  # fmt: skip
_NORMS_OF_BATCHES = ("batch_norm", "native_batch_norm", "_native_batch_norm_legit",
                     "_native_batch_norm_legit_no_training",
                     "_native_batch_norm_legit_functional")  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def normalize(program: Any) -> None:
    """Rewrite ``program.graph`` in place.

    Parameters
    ----------
    program
        A ``torch.export.ExportedProgram`` of functional operators.
    """
    for node in list(program.graph.nodes):
        if node.op != "call_function":
            continue
        for rewrite in _REWRITES.get(operator_name(node), ()):
            rewrite(program, node)
    widen_halves(program)
    program.graph.lint()


def _drop_alpha(program: Any, node: fx.Node) -> None:
    """``add(x, y, alpha=k)``: the importer never reads alpha."""
    alpha = node.kwargs.get("alpha", 1)
    if alpha == 1:
        return
    scaled: Any = node.args[1]
    scaled = (
        call_before(node, _ATEN.mul.Tensor, scaled, alpha)
        if isinstance(scaled, fx.Node)
        else scaled * alpha
    )
    node.args = (node.args[0], scaled, *node.args[2:])
    node.kwargs = {key: value for key, value in node.kwargs.items() if key != "alpha"}


def _promote(program: Any, node: fx.Node) -> None:
    """Cast operands as PyTorch promotes them: the importer casts scalars to the tensor's type."""
    name = operator_name(node)
    operands = node.args[:2]
    values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in operands]
    if not any(isinstance(v, torch.Tensor) for v in values) or len(values) != 2:
        return
    compute = torch.result_type(*values)
    if name not in _COMPARISONS:
        compute = torch.promote_types(compute, node.meta["val"].dtype)
    if compute == torch.bool and name in _LOGICAL:
        node.target = _LOGICAL[name]
        node.args = tuple(
            a if isinstance(a, fx.Node)
            else call_before(node, _ATEN.full.default, [], bool(a), dtype=torch.bool)
            for a in operands
        )  # fmt: skip
        return
    if compute == torch.bool:
        compute = torch.int32  # TVM compares and divides numbers only
    promoted = []
    for operand, value in zip(operands, values, strict=True):
        if isinstance(value, torch.Tensor) and value.dtype != compute:
            operand = call_before(node, _ATEN._to_copy.default, operand, dtype=compute)
        elif isinstance(value, (bool, int, float)):
            operand = _scalar(node, value, compute)
        promoted.append(operand)
    node.args = (*promoted, *node.args[2:])


def _scalar(node: fx.Node, value: bool | int | float, dtype: torch.dtype) -> Any:
    if node.target is _ATEN.div.Tensor_mode:  # there the importer ignores the tensor's type
        template = next(a for a in node.args if isinstance(a, fx.Node))
        return call_before(
            node, _ATEN.full.default, [], value, dtype=dtype, device=_device(template)
        )
    return float(value) if dtype.is_floating_point else value


def _device(node: fx.Node) -> torch.device:
    return node.meta["val"].device


def _positive_select(program: Any, node: fx.Node) -> None:
    """``select(x, dim, -1)``: the importer would read before the buffer."""
    source: Any
    source, dim, index = node.args
    if isinstance(index, int) and index < 0:
        node.args = (source, dim, index + source.meta["val"].shape[dim])


def _positive_permute(program: Any, node: fx.Node) -> None:
    """``permute(x, [-1, 0])``: TVM's layouts have no letters for negative axes."""
    source: Any
    source, dims = node.args[:2]
    rank = source.meta["val"].ndim
    node.args = (source, [d % rank for d in dims])


def _float_operand(program: Any, node: fx.Node) -> None:
    """``exp(3)``: PyTorch computes in the result's type, TVM takes floats only."""
    source: Any = node.args[0]
    result = node.meta["val"].dtype
    if result.is_floating_point and not source.meta["val"].dtype.is_floating_point:
        wide = call_before(node, _ATEN._to_copy.default, source, dtype=result)
        node.args = (wide, *node.args[1:])


def _cast_first(program: Any, node: fx.Node) -> None:
    """``cumprod(x, 1, dtype=…)``: the importer accumulates in x's own type."""
    source: Any = node.args[0]
    dtype = node.kwargs.get("dtype")
    if dtype is not None and dtype != source.meta["val"].dtype:
        node.args = (call_before(node, _ATEN._to_copy.default, source, dtype=dtype), *node.args[1:])


def _every_dimension(program: Any, node: fx.Node) -> None:
    """``mean(x, [])`` and ``mean(x, None)`` take all dimensions: the importer takes none."""
    source: Any = node.args[0]
    if node.target not in (_ATEN.mean.dim, _ATEN.sum.dim_IntList) or len(node.args) < 2:
        return
    if not node.args[1]:
        every = list(range(source.meta["val"].ndim))
        node.args = (source, every, *node.args[2:])


def _wide_index(program: Any, node: fx.Node) -> None:
    """``gather`` and ``scatter`` by int32: TVM wants int64."""
    index: Any = node.args[2]
    if isinstance(index, fx.Node) and index.meta["val"].dtype != torch.int64:
        wide = call_before(node, _ATEN._to_copy.default, index, dtype=torch.int64)
        node.args = (*node.args[:2], wide, *node.args[3:])


def _gather(program: Any, node: fx.Node) -> None:
    """``x[idx]``: wrap negative entries; name every axis where ``:`` is mixed with tensors."""
    source: Any = node.args[0]
    shape, indices = _wrapped(program, node)
    given = [index for index in indices if index is not None]
    if len(given) > 1 and len(given) < len(indices):
        indices = list(_explicit_indices(node, shape, indices)[0])
    node.args = (source, indices)


def _scatter(program: Any, node: fx.Node) -> None:
    """``x[idx] = v``: as one index vector an axis and a vector of values.

    The importer misplaces values wherever ``:`` is written or left out.
    """
    source, _, values, *rest = node.args
    shape, indices = _wrapped(program, node)
    explicit, full = _explicit_indices(node, shape, indices)
    flat = [_flatten(node, index, full) for index in explicit]
    node.args = (source, flat, _flatten(node, values, full), *rest)


def _wrapped(program: Any, node: fx.Node) -> tuple[list[int], list[Any]]:
    shape = [int(extent) for extent in node.args[0].meta["val"].shape]  # type: ignore[union-attr]
    wrapped = [
        _wrap_index(program, node, index, shape[axis])
        if isinstance(index, fx.Node) and index.meta["val"].dtype != torch.bool
        else index
        for axis, index in enumerate(node.args[1])  # type: ignore[arg-type]
    ]
    return shape, wrapped


def _explicit_indices(
    node: fx.Node, shape: list[int], indices: list[Any]
) -> tuple[list[fx.Node], list[int]]:
    """Return one index an axis, all of one rank, and the shape they broadcast to.

    As PyTorch lays it out: the broadcast extents of the tensors stand where the tensors stood,
    or first if ``:`` separates them.
    """
    indices = indices + [None] * (len(shape) - len(indices))
    at = [axis for axis, index in enumerate(indices) if index is not None]
    block = list(torch.broadcast_shapes(*(indices[a].meta["val"].shape for a in at)))
    adjacent = at == list(range(at[0], at[-1] + 1))
    first = at[0] if adjacent else 0
    plain = [axis for axis in range(len(shape)) if axis not in at]
    full = [shape[a] for a in plain[:first]] + block + [shape[a] for a in plain[first:]]
    device = _device(indices[at[0]])
    explicit = []
    for axis, index in enumerate(indices):
        if index is None:
            rank = plain.index(axis)
            place = rank if rank < first else rank + len(block)
            index = call_before(node, _ATEN.arange.default, shape[axis], device=device)
            view = [shape[axis] if i == place else 1 for i in range(len(full))]
        else:
            own = list(index.meta["val"].shape)
            view = [1] * first + [1] * (len(block) - len(own)) + own
            view += [1] * (len(full) - len(view))
        explicit.append(call_before(node, _ATEN.view.default, index, view))
    return explicit, full


def _flatten(node: fx.Node, value: Any, shape: list[int]) -> fx.Node:
    wide = call_before(node, _ATEN.expand.default, value, shape)
    return call_before(node, _ATEN.reshape.default, wide, [-1])


def _wrap_index(program: Any, node: fx.Node, index: fx.Node, extent: int) -> fx.Node:
    known = constant_value(program, index)
    if known is not None and (known.numel() == 0 or int(known.min()) >= 0):
        return index
    negative = call_before(node, _ATEN.lt.Scalar, index, 0)
    shifted = call_before(node, _ATEN.add.Scalar, index, extent)
    return call_before(node, _ATEN.where.self, negative, shifted, index)


def _inert_momentum(program: Any, node: fx.Node) -> None:
    """Momentum is for the new statistics alone, but TVM refuses what is not in [0, 1]."""
    results: list[Any] = [u for u in node.users if operator_name(u) == "getitem" and u.users]
    if any(result.args[1] > 2 for result in results):
        return
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    place = names.index("momentum")
    if place < len(node.args):
        node.args = (*node.args[:place], 0.1, *node.args[place + 1 :])


def _grid_channels_first(program: Any, node: fx.Node) -> None:
    """``grid_sampler_2d``: TVM wants the grid as (N, 2, H, W)."""
    grid = call_before(node, _ATEN.permute.default, node.args[1], [0, 3, 1, 2])
    node.args = (node.args[0], grid, *node.args[2:])


def constant_value(program: Any, node: fx.Node) -> torch.Tensor | None:
    """Return the tensor that ``node`` always has: a lifted constant, a buffer or an arange."""
    while node.op == "call_function" and operator_name(node) in ("lift_fresh_copy", "clone"):
        node = node.args[0]  # type: ignore[assignment]
    signature = program.graph_signature
    for table, values in (
        (signature.inputs_to_lifted_tensor_constants, program.constants),
        (signature.inputs_to_buffers, {**program.constants, **program.state_dict}),
    ):
        if node.name in table:
            return values.get(table[node.name])
    if node.op == "call_function" and operator_name(node) == "arange":
        plain = [a for a in node.args if not isinstance(a, fx.Node)]
        if len(plain) == len(node.args):
            return node.target(*plain, **{**node.kwargs, "device": "cpu"})  # type: ignore[operator]
    return None


Rewrite = Callable[[Any, fx.Node], None]

_REWRITES: dict[str, tuple[Rewrite, ...]] = {
    **dict.fromkeys((*ALONG_A_DIMENSION, *WITH_COMPANIONS), (widen_scalar,)),
    **dict.fromkeys((*_ARITHMETIC, *_COMPARISONS), (_promote,)),
    "add": (_drop_alpha, _promote),
    "sub": (_drop_alpha, _promote),
    "rsub": (_drop_alpha, _promote),
    "select": (_positive_select,),
    "permute": (_positive_permute,),
    **dict.fromkeys(("cumsum", "cumprod", "prod"), (widen_scalar, _cast_first)),
    **dict.fromkeys(_OF_FLOATS, (_float_operand,)),
    **dict.fromkeys(("mean", "sum"), (widen_scalar, _every_dimension)),
    **dict.fromkeys(
        ("gather", "scatter", "scatter_add", "scatter_reduce"), (widen_scalar, _wide_index)
    ),
    "index": (widen_scalar, _gather),
    "index_put": (widen_scalar, _scatter),
    "grid_sampler_2d": (_grid_channels_first,),
    **dict.fromkeys(_NORMS_OF_BATCHES, (_inert_momentum,)),
}
