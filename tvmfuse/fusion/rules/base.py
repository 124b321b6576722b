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

CONCAT = "concat"
Base = tuple[str, tuple[tuple[str, int], ...]]  # its name, and its slices that need no kernel
NO_BASE: Base = ("", ())
# Their kernels are written with strides of their own instead of being scheduled.
WRITTEN = frozenset(("attention", "matmul"))


def base_of(
    graph: KernelGraph,
    groups: Mapping[str, Group],
    owner: Mapping[str, str],
    name: str,
    axis: int,
) -> Base:
    """The tensor whose place a concatenation can take, and its slices that need no kernel.

    Parameters
    ----------
    graph
        The kernels.
    groups
        By their last members, in order.
    owner
        The last member of the group of each operator.
    name, axis
        The concatenation.

    Returns
    -------
    str, tuple of (str, int)
        Empty where no part is a slice of a tensor of the same shape, at the place at which it is
        wanted, or where that tensor is read when other parts are written already. With each slice,
        where it begins.
    """
    node = graph.nodes[name]
    staying: dict[str, int] = {}
    base, begin = "", 0
    for operand in node.operands:
        part = str(operand.name)
        source, at = _source(graph, groups, part, axis)
        if source and at == begin and base in ("", source) and graph.sole_user(part) == name:
            base = source
            staying[part] = at
        begin += (shape_of(operand) or ())[axis]
    rest = [str(o.name) for o in node.operands if str(o.name) not in staying]
    if (
        not base
        or any(part not in groups for part in rest)
        or not _lasts(graph, groups, base, name)
    ):
        return NO_BASE
    readers: list[str] = []
    for user in graph.users[base]:
        if user in staying:
            continue
        source, at = _source(graph, groups, user, axis)
        if source and all(_reads_in_place(groups, owner, u) for u in graph.users.get(user, ())):
            staying[user] = at
            readers += graph.users.get(user, ())
        else:
            readers.append(user)
    order = {last: number for number, last in enumerate(groups)}
    first = min((order[part] for part in rest), default=-1)
    if any(u not in owner or order[owner[u]] >= first for u in readers):
        return NO_BASE
    return base, tuple(staying.items())


def _source(
    graph: KernelGraph, groups: Mapping[str, Group], part: str, axis: int
) -> tuple[str, int]:
    """Of what a part is a slice along an axis, and where that begins; empty for another kernel."""
    group = groups.get(part)
    if group is None or group.ops != ("slice",) or part in graph.outputs:
        return "", 0
    begin = graph.slice_begin(part)
    own = graph.nodes[part].shape or ()
    (source,) = (o for o in graph.nodes[part].operands if isinstance(o, relax.Var))
    whole = shape_of(source) or ()
    if len(begin) != len(whole) or any(
        o != w for a, (o, w) in enumerate(zip(own, whole, strict=True)) if a != axis
    ):
        return "", 0
    return str(source.name), begin[axis]


def _reads_in_place(groups: Mapping[str, Group], owner: Mapping[str, str], user: str) -> bool:
    """Whether a kernel can read a slice where that lies."""
    group = groups.get(owner.get(user, ""))
    return group is not None and _is_scheduled(group)


def _lasts(graph: KernelGraph, groups: Mapping[str, Group], base: str, name: str) -> bool:
    """Whether the memory of ``base`` can become that of the concatenation."""
    node, group = graph.nodes[name], groups.get(base)
    if group is None or base in graph.outputs:
        return False
    alike = graph.nodes[base].shape == node.shape and dtype_of(graph.nodes[base].var) == node.dtype
    return alike and _is_scheduled(group)


def _is_scheduled(group: Group) -> bool:
    """Whether its kernel is made by a schedule, behind which its tensors can be moved."""
    return not WRITTEN & set(group.ops) and CONCAT not in group.ops
