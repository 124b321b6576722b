"""Lower comparisons so that NaN passes through them, as it does in PyTorch.

TVM compiles ``max(a, b)`` to ``a > b ? a : b`` and ``min`` likewise, so that a NaN in a is lost and
one in b is kept: against a constant, x has to be the second operand (relu(NaN) would be 0
otherwise). Where both operands may be NaN, the first one is tested as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from tvmfuse.passes.relax_tools import dtype_of, ints, shape_of, stock


def _larger(x: Any, y: Any) -> Any:
    """Maximum that answers NaN if either operand is NaN."""
    return tirx.Select(tirx.any(x > y, tirx.isnan(x)), x, y)


def _smaller(x: Any, y: Any) -> Any:
    """Minimum that answers NaN if either operand is NaN."""
    return tirx.Select(tirx.any(x < y, tirx.isnan(x)), x, y)


def _relu(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    def compute(x: te.Tensor) -> te.Tensor:
        zero = tirx.const(0, x.dtype)
        return te.compute(x.shape, lambda *i: tirx.max(zero, x(*i)), "relu")

    return bb.call_te(compute, call.args[0], primfunc_name_hint="relu")


def _clip(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """An infinite bound is none, and is no number at all for integers."""
    low, high = (float(a.value) for a in call.args[1:])
    whole = "int" in dtype_of(call)

    def bound(value: float, dtype: str) -> tirx.PrimExpr:
        return tirx.const(int(value) if whole else value, dtype)

    def compute(x: te.Tensor) -> te.Tensor:
        def body(*i: Any) -> Any:
            value = x(*i)
            if not math.isinf(low):
                value = tirx.max(bound(low, x.dtype), value)
            return value if math.isinf(high) else tirx.min(bound(high, x.dtype), value)

        return te.compute(x.shape, body, "clip")

    return bb.call_te(compute, call.args[0], primfunc_name_hint="clip")


def _reducer(pick: Callable[[Any, Any], Any], start: Callable[[str], Any], name: str) -> Any:
    return te.comm_reducer(pick, start, name=name)


def _reduction(
    pick: Callable[[Any, Any], Any], start: Callable[[str], Any], name: str
) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        source = shape_of(call.args[0])
        if source is None:
            raise ValueError(f"{name} of a tensor whose shape is not known")
        rank = len(source)
        axes = call.attrs.axis
        reduced = sorted({a % rank for a in ints(axes)} if axes is not None else range(rank))
        shape = shape_of(call)
        keeps = bool(call.attrs.keepdims)

        def compute(x: te.Tensor) -> te.Tensor:
            loops = [te.reduce_axis((0, source[a]), f"k{a}") for a in reduced]

            def body(*i: Any) -> Any:
                outer = iter(i)
                index: list[Any] = []
                for axis in range(rank):
                    if axis in reduced:
                        index.append(loops[reduced.index(axis)])
                        if keeps:
                            next(outer)
                    else:
                        index.append(next(outer))
                return _reducer(pick, start, name)(x(*index), axis=loops)

            return te.compute(shape, body, name)

        return bb.call_te(compute, call.args[0], primfunc_name_hint=name)

    return legalize


def _lowest(dtype: str) -> Any:
    """What every value exceeds or equals: of floats minus infinity, which is a value as well."""
    return tirx.const(-math.inf, dtype) if "float" in str(dtype) else tirx.min_value(dtype)


def _highest(dtype: str) -> Any:
    """The same for minima."""
    return tirx.const(math.inf, dtype) if "float" in str(dtype) else tirx.max_value(dtype)


def _max_pool(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Maximum over windows; what lies outside of the image counts as minus infinity."""
    attrs, source, shape = call.attrs, shape_of(call.args[0]), shape_of(call)
    if source is None or shape is None:
        raise ValueError("max_pool of a tensor whose shape is not known")
    spatial = [i for i, letter in enumerate(str(attrs.layout)) if letter in "DHW"]
    size, stride = ints(attrs.pool_size), ints(attrs.strides)
    dilation, before = ints(attrs.dilation), ints(attrs.padding)[: len(spatial)]

    def compute(x: te.Tensor) -> te.Tensor:
        wide = list(source)
        for d, axis in enumerate(spatial):
            reach = (shape[axis] - 1) * stride[d] + (size[d] - 1) * dilation[d] + 1
            wide[axis] = max(reach, before[d] + source[axis])

        def padded(*i: Any) -> Any:
            at = [i[a] - (before[spatial.index(a)] if a in spatial else 0) for a in range(len(i))]
            inside = [test for a in spatial for test in (at[a] >= 0, at[a] < source[a])]
            return tirx.if_then_else(tirx.all(*inside), x(*at), _lowest(x.dtype))

        whole = te.compute(wide, padded, "pad") if wide != list(source) else x
        loops = [te.reduce_axis((0, s), f"k{d}") for d, s in enumerate(size)]

        def body(*i: Any) -> Any:
            index = list(i)
            for d, axis in enumerate(spatial):
                index[axis] = i[axis] * stride[d] + loops[d] * dilation[d]
            return _reducer(_larger, _lowest, "max")(whole(*index), axis=loops)

        return te.compute(shape, body, "max_pool")

    return bb.call_te(compute, call.args[0], primfunc_name_hint="max_pool")


def _pairwise(
    pick: Callable[[Any, Any], Any], name: str
) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        shape = shape_of(call)

        def compute(x: te.Tensor, y: te.Tensor) -> te.Tensor:
            def read(t: te.Tensor, i: tuple[Any, ...]) -> Any:
                own = i[len(i) - len(t.shape) :]
                return t(*(0 if int(e) == 1 else a for e, a in zip(t.shape, own, strict=True)))

            return te.compute(shape, lambda *i: pick(read(x, i), read(y, i)), name)

        return bb.call_te(compute, *call.args, primfunc_name_hint=name)

    return legalize


def _floating(legalize: Any, stock: Any) -> Any:
    """Integers have no NaN: TVM's own lowering serves them."""

    def choose(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        known = all(shape_of(e) is not None for e in (call, *_tensors(call)))
        ours = dtype_of(call).startswith(("float", "bfloat")) and known
        return legalize(bb, call) if ours else stock(bb, call)

    return choose


def _any_type(legalize: Any, stock: Any) -> Any:
    def choose(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return legalize(bb, call) if shape_of(call) is not None else stock(bb, call)

    return choose


def _tensors(call: relax.Call) -> list[Any]:
    return [a for a in call.args if isinstance(a.ty, relax.TensorType)]


def legalize_map() -> dict[str, Any]:
    """Custom legalisations for ``relax.transform.LegalizeOps``."""
    ours = {
        "relax.nn.relu": _relu,
        "relax.maximum": _pairwise(_larger, "maximum"),
        "relax.minimum": _pairwise(_smaller, "minimum"),
        "relax.max": _reduction(_larger, _lowest, "max"),
        "relax.min": _reduction(_smaller, _highest, "min"),
        "relax.nn.max_pool1d": _max_pool,
        "relax.nn.max_pool2d": _max_pool,
        "relax.nn.max_pool3d": _max_pool,
    }
    chosen = {name: _floating(legalize, stock(name)) for name, legalize in ours.items()}
    return {**chosen, "relax.clip": _any_type(_clip, stock("relax.clip"))}
