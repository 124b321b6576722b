"""Norms without weights: TVM's converters fail on an affine argument that is None."""

from __future__ import annotations

from typing import Any

import numpy as np


def _affine(importer: Any, node: Any, first: int, shape: tuple[int, ...], x: Any) -> Any:
    """Weight and bias from the node's arguments; ones and zeros where they are None."""
    from tvm import relax

    found = []
    for position, fill in ((first, 1.0), (first + 1, 0.0)):
        given = node.args[position] if len(node.args) > position else None
        if given is None:
            found.append(relax.const(np.full(shape, fill), str(x.ty.dtype)))
        else:
            found.append(importer.env[given])
    return found


def _argument(node: Any, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def layer_norm(importer: Any, node: Any) -> Any:
    """``layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5)``."""
    from tvm import relax

    x = importer.env[node.args[0]]
    shape = tuple(int(e) for e in node.args[1])
    gamma, beta = _affine(importer, node, 2, shape, x)
    axes = list(range(-len(shape), 0))
    epsilon = float(_argument(node, 4, "eps", 1e-5))
    return importer.block_builder.emit(
        relax.op.nn.layer_norm(x, gamma, beta, axes=axes, epsilon=epsilon)
    )


def group_norm(importer: Any, node: Any) -> Any:
    """``group_norm(x, num_groups, weight=None, bias=None, eps=1e-5)``."""
    from tvm import relax

    x = importer.env[node.args[0]]
    shape = importer.shape_of(x)
    gamma, beta = _affine(importer, node, 2, (int(shape[1]),), x)
    return importer.block_builder.emit(
        relax.op.nn.group_norm(
            x,
            gamma,
            beta,
            num_groups=int(node.args[1]),
            channel_axis=1,
            axes=list(range(2, len(shape))),
            epsilon=float(_argument(node, 4, "eps", 1e-5)),
        )
    )


CONVERTERS = {"layer_norm.default": layer_norm, "group_norm.default": group_norm}
