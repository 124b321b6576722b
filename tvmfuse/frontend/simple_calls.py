"""Calls whose simple form is known without a trace of them.

Tracing a call costs milliseconds, running it on fake tensors a tenth of that. Most calls of a model
are simple already, write what a simple one returns, or are of a few operators whose form depends on
nothing but their arguments: the functions at the end, each for one operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._decomp import _core_aten_decompositions_post_autograd
from torch._export.utils import _is_cia_op, _is_preservable_cia_op, _special_op_to_preserve_cia
from torch._prims_common import infer_size
from torch.export.decomp_utils import PRESERVED_ATEN_CIA_OPS

_ATEN = torch.ops.aten
_META = frozenset((torch._C.DispatchKey.Meta,))  # kernels in Python that compute shapes alone


@dataclass(frozen=True)
class Table:
    """What operators become.

    Parameters
    ----------
    simple
        Decompositions of operators with kernels of their own.
    composite
        The same of operators that PyTorch composes of others, where it is not PyTorch's own;
        ``_special_op_to_preserve_cia`` keeps the operator.
    """

    simple: dict[Any, Callable[..., Any]]
    composite: dict[Any, Callable[..., Any]]


def table_of(kept: frozenset[str], ours: dict[Any, Callable[..., Any]]) -> Table:
    """The default table of PyTorch without the operators ``kept`` (``aten::NAME``), and with ours.

    PyTorch's own table names all of its thousand composite operators, which takes a third of a
    second to look up and to override; an operator that is in neither of these is composed as ever.
    """
    packets = (getattr(torch.ops.aten, name.removeprefix("aten::")) for name in kept)
    overloads = [getattr(p, o) for p in packets for o in p.overloads()]
    preserved = {o for o in (*overloads, *PRESERVED_ATEN_CIA_OPS) if _is_preservable_cia_op(o)}
    simple = {o: f for o, f in _core_aten_decompositions_post_autograd().items()
              if o not in overloads}  # fmt: skip
    composite = dict.fromkeys(preserved, _special_op_to_preserve_cia)
    for target, f in ours.items():
        simple.pop(target, None)
        (composite if _is_preservable_cia_op(target) else simple)[target] = f
    for target in [o for o in simple if _is_preservable_cia_op(o)]:
        composite[target] = simple.pop(target)
    return Table(simple, composite)


class Simple(NamedTuple):
    """The one simple call that a call becomes.

    ``target`` is None where the call returns its first argument; ``pick`` is which of the results,
    None for all.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    pick: int | None = None


def simple_form(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], table: Table
) -> Simple | None:
    """What a call becomes, or None where only a trace can tell.

    Arguments are nodes, which have their fake tensors in ``meta["val"]``.
    """
    form: Simple | None = Simple(target, args, kwargs)
    if target in _FORMS:
        form = None if kwargs else _FORMS[target](*args)
    elif target._schema.is_mutable:
        form = Simple(_without_write(target), args, kwargs)
        if form.target is None:
            return None
    if form is None or form.target is None or is_simple(*form[:3], table):
        return form
    return None


def is_simple(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], table: Table) -> bool:
    """Whether a call is left as it is."""
    schema = target._schema
    aliases = any(a.alias_info for a in (*schema.arguments, *schema.returns))
    if schema.is_mutable or (aliases and target not in _VIEWS):
        return False
    composite = _is_cia_op(target)
    if (target in table.composite) != composite:
        return False
    if not composite and not _META.issuperset(target.py_kernels):
        return False
    taken_apart = (table.composite if composite else table.simple).get(target)
    if taken_apart is None or taken_apart is _special_op_to_preserve_cia:
        return True
    if target not in _ASKED:
        return False
    with torch.no_grad():
        return taken_apart(*filled(args), **filled(kwargs)) is NotImplemented


def filled(arguments: Any) -> Any:
    """Arguments with their fake tensors in the places of nodes."""
    return fx.node.map_arg(arguments, lambda node: node.meta["val"])


def _without_write(target: Any) -> Any:
    """The operator that returns what ``target`` writes into its first argument, or None."""
    packet, overload = target._schema.name, target._overloadname
    if not packet.startswith("aten::") or not packet.endswith("_") or packet.endswith("__"):
        return None
    if torch.Tag.nondeterministic_seeded in target.tags:
        return None
    found = getattr(getattr(_ATEN, packet[len("aten::") : -1], None), overload, None)
    if found is None:
        return None
    same = [
        [(a.name, str(a.type)) for a in schema.arguments]
        for schema in (found._schema, target._schema)
    ]
    return found if same[0] == same[1] else None


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any,
    training: bool, momentum: float, eps: float, cudnn: bool,
) -> Simple | None:  # fmt: skip
    """With given statistics."""
    if training or mean is None or variance is None or not _value(x).numel():
        return None
    given = (x, weight, bias, mean, variance, momentum, eps)
    return Simple(_ATEN._native_batch_norm_legit_no_training.default, given, {}, 0)


def _dropout(x: Any, _: float, training: bool) -> Simple | None:
    return None if training else Simple(None, (x,), {})


def _mean_of_image(x: Any, size: Any) -> Simple | None:
    """Pooling to one place; channels last has other strides."""
    if list(size) != [1, 1] or not _value(x).is_contiguous() or not _value(x).numel():
        return None
    return Simple(_ATEN.mean.dim, (x, [-1, -2], True), {})


def _reshape(x: Any, shape: Any) -> Simple | None:
    """Of what lies in order: a view."""
    value = _value(x)
    if not value.is_contiguous() or not value.numel():
        return None
    if infer_size(list(shape), value.numel()) == tuple(value.shape):
        return None
    return Simple(_ATEN.view.default, (x, list(shape)), {})


def _flatten(x: Any, start: int = 0, end: int = -1) -> Simple | None:
    shape = list(_value(x).shape)
    first, last = start % max(len(shape), 1), end % max(len(shape), 1)
    if last <= first:
        return None
    return _reshape(x, [*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]])


def _transpose(x: Any, one: int, other: int) -> Simple | None:
    axes = list(range(_value(x).ndim))
    if not axes:
        return None
    axes[one], axes[other] = axes[other], axes[one]
    return Simple(_ATEN.permute.default, (x, axes), {})


def _value(node: fx.Node) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value


_FORMS: dict[Any, Callable[..., Simple | None]] = {
    _ATEN.batch_norm.default: _batch_norm,
    _ATEN.dropout.default: _dropout,
    _ATEN.dropout_.default: _dropout,
    _ATEN.adaptive_avg_pool2d.default: _mean_of_image,
    _ATEN.reshape.default: _reshape,
    _ATEN.flatten.using_ints: _flatten,
    _ATEN.transpose.int: _transpose,
}
# Our decompositions of these leave nearly all calls alone, and look at shapes to know it.
_ASKED = frozenset(
    (_ATEN.conv1d.default, _ATEN.conv2d.default, _ATEN.conv3d.default, _ATEN.cat.default)
)
# Views are simple whoever sees the memory: that no write does is known from `aliases.rewritten`.
_VIEWS = frozenset(
    (
        _ATEN.permute.default, _ATEN.view.default, _ATEN.unsqueeze.default, _ATEN.slice.Tensor,
        _ATEN.select.int, _ATEN.expand.default,
    )
)  # fmt: skip
