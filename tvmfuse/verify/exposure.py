"""Whether a model's outputs show where NaN and infinity stood, decided before anything is built.

A Winograd convolution hands NaN in one pixel to its neighbours in the same tile. Behind a mean over
the image or a product with all pixels nobody can tell; in the output image of a denoiser everybody
can, and verification would refuse it after a whole build.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from tvmfuse.graph import Graph, Node
from tvmfuse.verify.inputs import edge_inputs
from tvmfuse.verify.reference import eager
from tvmfuse.workload import Workload

_PRODUCTS = frozenset(("dense", "matmul"))


def shows_positions(
    workload: Workload, lowered: Workload, convolutions: Iterable[str], seed: int
) -> bool:
    """Whether NaN or infinity in one input element leaves some output partly finite.

    Parameters
    ----------
    workload, lowered
        The model, and the same after `tvmfuse.passes.pipeline.lower`.
    convolutions
        Variables of ``lowered`` whose values may hold neighbours' NaN: the question is only asked
        if positions in them reach an output.
    seed
        Of the inputs that verification will draw.
    """
    return reaches_output(Graph(lowered.module), convolutions) and _partly_finite(workload, seed)


def reaches_output(graph: Graph, names: Iterable[str]) -> bool:
    """Whether positions in some of the values reach an output without being summed over."""
    seen: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in graph.outputs:
            return True
        stack += [u for u in graph.users.get(name, ()) if not _mixes(graph.nodes[u])]
    return False


def _mixes(node: Node) -> bool:
    """Whether every element of the result depends on all positions of a sample."""
    shape = node.shape
    if shape is None:
        return False
    positions = math.prod(shape[1:-1])
    return positions == 1 and (node.op in _PRODUCTS or node.op == "mean")


def _partly_finite(workload: Workload, seed: int) -> bool:
    kinds = edge_inputs(workload.example_inputs, seed)
    for kind in ("nan", "inf"):
        if kind not in kinds:
            continue
        try:
            with torch.no_grad():
                outputs = eager(workload, kinds[kind])
        except Exception:  # the user's own module refuses such inputs: verification leaves them out
            continue
        finite = [leaf.isfinite() for leaf in outputs if leaf.is_floating_point()]
        if any(bool(f.any()) and not bool(f.all()) for f in finite):
            return True
    return False
