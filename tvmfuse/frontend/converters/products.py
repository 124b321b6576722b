"""Products and convolutions of doubles and integers, which TVM's importer turns into float32."""

from __future__ import annotations

from typing import Any

from tvm import relax


def _dtype(node: Any) -> str:
    return str(node.meta["val"].dtype).removeprefix("torch.")


def _scaled(importer: Any, value: Any, factor: float, dtype: str) -> Any:
    if factor == 1:
        return value
    return importer.block_builder.emit(relax.op.multiply(value, relax.const(factor, dtype)))


def product(importer: Any, node: Any) -> Any:
    """``mm``, ``bmm`` and ``matmul``."""
    one, other = (importer.env[a] for a in node.args[:2])
    return importer.block_builder.emit(relax.op.matmul(one, other, out_dtype=_dtype(node)))


def product_onto(importer: Any, node: Any) -> Any:
    """``addmm`` and ``baddbmm``; with ``beta`` 0 the first operand is not read."""
    dtype, emit = _dtype(node), importer.block_builder.emit
    onto, one, other = (importer.env[a] for a in node.args[:3])
    found = emit(relax.op.matmul(one, other, out_dtype=dtype))
    found = _scaled(importer, found, node.kwargs.get("alpha", 1), dtype)
    beta = node.kwargs.get("beta", 1)
    return found if beta == 0 else emit(relax.op.add(_scaled(importer, onto, beta, dtype), found))


def linear(importer: Any, node: Any) -> Any:
    """``linear``."""
    x, weight, *bias = importer.retrieve_args(node)
    added = bias[0] if bias else None
    return importer.block_builder.emit(relax.op.linear(x, weight, added, _dtype(node)))


def convolution(importer: Any, node: Any) -> Any:
    """``conv1d`` to ``conv3d``."""
    given: list[Any] = list(importer.retrieve_args(node))
    defaults: list[Any] = [None, None, None, 1, 0, 1, 1]
    x, weight, bias, stride, padding, dilation, groups = given + defaults[len(given) :]
    rank, emit = len(node.args[1].meta["val"].shape) - 2, importer.block_builder.emit
    operator = (relax.op.nn.conv1d, relax.op.nn.conv2d, relax.op.nn.conv3d)[rank - 1]
    found = emit(operator(x, weight, stride, padding, dilation, groups, out_dtype=_dtype(node)))
    if bias is None:
        return found
    shape = (1, -1, *[1] * rank)
    return emit(relax.op.add(found, emit(relax.op.reshape(bias, shape))))


# By the overload's name, for results that are not float32.
OTHER_TYPES = {
    "mm.default": product,
    "bmm.default": product,
    "matmul.default": product,
    "addmm.default": product_onto,
    "baddbmm.default": product_onto,
    "linear.default": linear,
    "conv1d.default": convolution,
    "conv2d.default": convolution,
    "conv3d.default": convolution,
}
