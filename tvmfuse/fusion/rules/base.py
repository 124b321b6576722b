"""Concatenations that take the place of a tensor of which they hold a part.

The two branches of a C3 block begin with convolutions of one input, which the horizontal rule
merges: ``s1, s2 = split(m); c = concat(f(s1), s2)``. Once ``f`` has read ``s1``, the memory of
``m`` is where ``c`` can lie: ``f(s1)`` is written over ``s1``, and ``s2`` stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tvm import relax

from tvmfuse.fusion.group import Group
from tvmfuse.graph import dtype_of, shape_of

if TYPE_CHECKING:  # it needs this package's words for anchors
    from tvmfuse.fusion.kernels import KernelGraph

_NONE: tuple[str, tuple[str, ...]] = ("", ())
# Their kernels are written with strides of their own instead of being scheduled.
_WRITTEN = frozenset(("attention", "matmul"))


def base_of(
    graph: KernelGraph, groups: Mapping[str, Group], owner: Mapping[str, str], name: str
) -> tuple[str, tuple[str, ...]]:
    """The tensor whose place a concatenation can take, and which parts stay.

    Parameters
    ----------
    graph
        The kernels.
    groups
        By their last members, in order.
    owner
        The last member of the group of each operator.
    name
        The concatenation.

    Returns
    -------
    str, tuple of str
        Empty where no part is a slice of a tensor of the same shape, at the place at which it is
        wanted, or where that tensor is read when other parts are written already.
    """
    node = graph.nodes[name]
    shapes = [shape_of(o) for o in node.operands]
    staying: list[str] = []
    base, begin = "", [0] * len(node.shape or ())
    for operand, shape in zip(node.operands, shapes, strict=True):
        if shape is None or node.shape is None or len(shape) != len(begin):
            return _NONE
        part = str(operand.name)
        source = _source(graph, groups, part, tuple(begin))
        if source and base in ("", source) and graph.sole_user(part) == name:
            base = source
            staying.append(part)
        extents = zip(begin, shape, node.shape, strict=True)
        begin = [b + e if e != whole else b for b, e, whole in extents]
    rest = [str(o.name) for o in node.operands if str(o.name) not in staying]
    if not base or not rest or not _takes_over(graph, groups, base, name):
        return _NONE
    order = {last: number for number, last in enumerate(groups)}
    readers = [u for u in graph.users[base] if u not in staying]
    for part in rest:
        if part not in groups:
            return _NONE
        for reader in readers:
            if owner.get(reader) is None or order[owner[reader]] >= order[part]:
                return _NONE
    return base, tuple(staying)


def _source(
    graph: KernelGraph, groups: Mapping[str, Group], part: str, begin: tuple[int, ...]
) -> str:
    """Of what a part is the slice that begins there; empty where it is none."""
    group = groups.get(part)
    if group is None or group.ops != ("slice",) or graph.slice_begin(part) != begin:
        return ""
    (source,) = (o for o in graph.nodes[part].operands if isinstance(o, relax.Var))
    return str(source.name)


def _takes_over(graph: KernelGraph, groups: Mapping[str, Group], base: str, name: str) -> bool:
    """Whether the memory of ``base`` can become that of the concatenation."""
    node, group = graph.nodes[name], groups.get(base)
    if group is None or base in graph.outputs:
        return False
    alike = graph.nodes[base].shape == node.shape and dtype_of(graph.nodes[base].var) == node.dtype
    return alike and not _WRITTEN & set(group.ops) and "concat" not in group.ops
