"""Sorting and scattering along an axis, which only Relax can say."""

from __future__ import annotations

from typing import Any

from tvm import relax

_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def sort(importer: Any, node: Any) -> Any:
    """``sort(x, dim, descending)``."""
    return _sorted(importer, node, ("dim", "descending"))


def sort_stable(importer: Any, node: Any) -> Any:
    """``sort(x, stable, dim, descending)``; TVM's sort always is."""
    return _sorted(importer, node, ("stable", "dim", "descending"))


def _sorted(importer: Any, node: Any, names: tuple[str, ...]) -> Any:
    """Values and places."""
    arguments = {"dim": -1, "descending": False, **node.kwargs}
    arguments.update(zip(names, node.args[1:], strict=False))
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    axis = int(arguments["dim"]) % len(node.args[0].meta["val"].shape)
    keys = emit(relax.op.astype(x, "int32")) if _is_bool(node.args[0]) else x
    places = emit(relax.op.argsort(keys, axis, bool(arguments["descending"]), "int64"))
    return relax.Tuple([emit(relax.op.gather_elements(x, places, axis)), places])


def _is_bool(node: Any) -> bool:
    return str(node.meta["val"].dtype) == "torch.bool"


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
    onto, values = importer.env[target], importer.env[source]
    shape = list(index.meta["val"].shape)
    if list(source.meta["val"].shape) != shape:
        values = emit(relax.op.strided_slice(values, list(range(rank)), [0] * rank, shape))
    if _is_bool(target):
        onto, values = (emit(relax.op.astype(t, "int32")) for t in (onto, values))
    found = emit(
        relax.op.scatter_elements(onto, importer.env[index], values, dim % rank, reduction)
    )
    return emit(relax.op.astype(found, "bool")) if _is_bool(target) else found


def _shift(operator: Any) -> Any:
    def convert(importer: Any, node: Any) -> Any:
        one, other = importer.retrieve_args(node)
        if isinstance(other, int):
            dtype = str(node.args[0].meta["val"].dtype).removeprefix("torch.")
            other = relax.const(other, dtype)
        return importer.block_builder.emit(operator(one, other))

    return convert


CONVERTERS = {
    **{
        f"{name}.{overload}": _shift(operator)
        for name, operator in (
            ("bitwise_left_shift", relax.op.left_shift),
            ("bitwise_right_shift", relax.op.right_shift),
            ("__lshift__", relax.op.left_shift),
            ("__rshift__", relax.op.right_shift),
        )
        for overload in ("Tensor", "Scalar", "Tensor_Scalar")
    },
    "sort.default": sort,
    "sort.stable": sort_stable,
    "scatter_reduce.two": scatter_reduce,
    "scatter_add.default": scatter_add,
}
