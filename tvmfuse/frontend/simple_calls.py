"""Calls whose simple form is known without a trace of them.

Tracing a call costs milliseconds, running it on fake tensors a tenth of that. Most calls of a model
are simple already, write what a simple one returns, or are batch norms of given statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import fx
from torch._decomp import _core_aten_decompositions_post_autograd
from torch._export.utils import _is_cia_op, _is_preservable_cia_op, _special_op_to_preserve_cia
from torch.export.decomp_utils import PRESERVED_ATEN_CIA_OPS
from torch.utils._python_dispatch import TorchDispatchMode

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
    """The one simple call that a call becomes; ``pick`` is which of its results, None for all."""

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
    if target is _ATEN.batch_norm.default:
        return _batch_norm(args, kwargs, table)
    if target._schema.is_mutable:
        plain = _without_write(target)
        if plain is None or not is_simple(plain, args, kwargs, table):
            return None
        return Simple(plain, args, kwargs)
    return Simple(target, args, kwargs) if is_simple(target, args, kwargs, table) else None


def is_simple(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], table: Table
) -> bool:
    """Whether a call is left as it is; one that returns views of its operands is not asked."""
    schema = target._schema
    if schema.is_mutable or any(a.alias_info for a in (*schema.arguments, *schema.returns)):
        return False
    composite = _is_cia_op(target)
    if (target in table.composite) != composite:
        return False
    if not composite and not _META.issuperset(target.py_kernels):
        return False
    taken_apart = (table.composite if composite else table.simple).get(target)
    if taken_apart is None or taken_apart is _special_op_to_preserve_cia:
        return True
    with _FirstOperator():
        try:
            return taken_apart(*filled(args), **filled(kwargs)) is NotImplemented
        except Exception:  # it begins to take the call apart, or fails: the trace will tell
            return False


def filled(arguments: Any) -> Any:
    """Arguments with their fake tensors in the places of nodes."""
    return fx.node.map_arg(arguments, lambda node: node.meta["val"])


class _FirstOperator(TorchDispatchMode):
    """Ends a decomposition where it begins; those that leave the call alone come to their end."""

    def __torch_dispatch__(self, *_: Any) -> NoReturn:
        raise NotImplementedError("the call is taken apart")


def _batch_norm(args: tuple[Any, ...], kwargs: dict[str, Any], table: Table) -> Simple | None:
    """With given statistics; the last argument is of cuDNN alone."""
    simple = _ATEN._native_batch_norm_legit_no_training.default
    if kwargs or len(args) != 9:
        return None
    x, weight, bias, mean, variance, training, momentum, eps, _ = args
    if training or mean is None or variance is None or not x.meta["val"].numel():
        return None
    given = (x, weight, bias, mean, variance, momentum, eps)
    return Simple(simple, given, {}, 0) if is_simple(simple, given, {}, table) else None


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
