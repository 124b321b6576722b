"""Reductions that TVM's importer lacks, by Relax's own."""

from __future__ import annotations

from typing import Any

from tvm import relax


def _axes(node: Any, position: int = 1) -> list[int] | None:
    given = node.args[position] if len(node.args) > position else node.kwargs.get("dim")
    if given is None or given == []:
        return None
    return [given] if isinstance(given, int) else list(given)


def _keep(node: Any, position: int = 2) -> bool:
    return bool(node.args[position] if len(node.args) > position else node.kwargs.get("keepdim"))


def _extreme(reduce: Any) -> Any:
    def convert(importer: Any, node: Any) -> Any:
        x, axes = importer.env[node.args[0]], _axes(node)
        shape = node.args[0].meta["val"].shape
        if not shape:
            return x
        if str(node.args[0].meta["val"].dtype) != "torch.bool":
            return importer.block_builder.emit(reduce(x, axes, _keep(node)))
        wide = importer.block_builder.emit(relax.op.astype(x, "int32"))
        found = importer.block_builder.emit(reduce(wide, axes, _keep(node)))
        return importer.block_builder.emit(relax.op.astype(found, "bool"))

    return convert


def product(importer: Any, node: Any) -> Any:
    """``prod`` along one dimension."""
    x, value = importer.env[node.args[0]], node.meta["val"]
    dtype = str(value.dtype).removeprefix("torch.")
    if str(node.args[0].meta["val"].dtype) != str(value.dtype):
        x = importer.block_builder.emit(relax.op.astype(x, dtype))
    if not node.args[0].meta["val"].shape:
        return x
    return importer.block_builder.emit(relax.op.prod(x, _axes(node), _keep(node)))


CONVERTERS = {
    "amax.default": _extreme(relax.op.max),
    "amin.default": _extreme(relax.op.min),
    "prod.dim_int": product,
    "prod.default": product,
}
