"""Sorting and scattering along an axis, which only Relax can say."""

from __future__ import annotations

from typing import Any

from tvm import relax

_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def sort_stable(importer: Any, node: Any) -> Any:
    """Values and places; TVM's sort is stable."""
    arguments = {"dim": -1, "descending": False, **node.kwargs}
    for name, value in zip(("stable", "dim", "descending"), node.args[1:], strict=False):
        arguments[name] = value
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    axis = int(arguments["dim"]) % len(node.args[0].meta["val"].shape)
    places = emit(relax.op.argsort(x, axis, bool(arguments["descending"]), "int64"))
    return relax.Tuple([emit(relax.op.gather_elements(x, places, axis)), places])


def scatter_reduce(importer: Any, node: Any) -> Any:
    """``scatter_reduce`` with the target's own values included."""
    target, dim, index, source, reduction = node.args[:5]
    return _scatter(importer, target, dim, index, source, _REDUCTIONS[reduction])


def scatter_add(importer: Any, node: Any) -> Any:
    """``scatter_add``."""
    target, dim, index, source = node.args
    return _scatter(importer, target, dim, index, source, "add")


def _scatter(importer: Any, target: Any, dim: int, index: Any, source: Any, reduction: str) -> Any:
    rank = len(target.meta["val"].shape)
    emit = importer.block_builder.emit
    values, shape = importer.env[source], list(index.meta["val"].shape)
    if list(source.meta["val"].shape) != shape:
        values = emit(relax.op.strided_slice(values, list(range(rank)), [0] * rank, shape))
    return emit(
        relax.op.scatter_elements(
            importer.env[target], importer.env[index], values, dim % rank, reduction
        )
    )


CONVERTERS = {
    "sort.stable": sort_stable,
    "scatter_reduce.two": scatter_reduce,
    "scatter_add.default": scatter_add,
}
