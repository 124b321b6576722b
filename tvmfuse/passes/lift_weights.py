"""Turn the constants of ``main`` into one tuple argument, so that weights live outside the code.

Before: ``main(x)`` with constants in it      After: ``main(x, weights: Tuple)`` and their arrays
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvmfuse.passes.relax_tools import bindings, with_leaves


def lift_weights(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[np.ndarray]]:
    """Return the module whose ``main`` takes its weights last, and the weights in order."""
    main = mod["main"]
    found: list[GenericConst] = []
    index: dict[int, int] = {}

    def note(expr: Any) -> None:
        if isinstance(expr, GenericConst) and hash(expr) not in index:
            index[hash(expr)] = len(found)
            found.append(expr)

    for binding in bindings(main):
        relax.analysis.post_order_visit(binding.value, note)
    relax.analysis.post_order_visit(main.body.body, note)
    arrays = [c.value.numpy() for c in found]
    return _with_parameter(mod, found, index), arrays


def _with_parameter(
    mod: tvm.IRModule, found: list[GenericConst], index: dict[int, int]
) -> tvm.IRModule:
    main = mod["main"]
    others = {gv: f for gv, f in mod.functions_items() if gv.name_hint != "main"}
    builder = relax.BlockBuilder(tvm.IRModule(others))
    weights = relax.Var("weights", relax.TupleType([c.ty for c in found]))
    remap: dict[relax.Var, Any] = {p: relax.Var(p.name, p.ty) for p in main.params}

    def leaf(expr: Any) -> Any:
        if isinstance(expr, GenericConst):
            return relax.TupleGetItem(weights, index[hash(expr)])
        return remap[expr]

    with builder.function("main", [*remap.values(), weights], attrs={"num_input": len(remap)}):
        with builder.dataflow():
            for binding in bindings(main):
                remap[binding.var] = builder.emit(
                    with_leaves(binding.value, leaf), binding.var.name
                )
            outputs = builder.emit_output(with_leaves(main.body.body, leaf))
        builder.emit_func_output(outputs)
    return builder.finalize()
