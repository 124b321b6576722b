"""Make a reshape between two movements of data a kernel, so that all three become one.

A reshape is a view of memory only if its source is stored. Between a slice or transpose and the
next one, storing it is the cost: as a kernel it merges with both, and nothing is stored between.

Before: ``transpose(reshape(strided_slice(x)))`` as two kernels around a view
After:  the same with ``reshape`` as a kernel, which the planner groups with its neighbours
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax, topi

from tvmfuse.graph import Graph, Node, shape_of
from tvmfuse.passes.relax_tools import with_variables

_MOVES = frozenset(("strided_slice", "transpose"))


@tvm.transform.module_pass(opt_level=0, name="FuseMoves")
class FuseMoves:
    """Placement: after the lowering, behind the pass that turns reshapes into views."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        graph = Graph(mod)
        wanted = {n.name for n in graph.nodes.values() if _between_moves(graph, n)}
        return _as_kernels(mod, graph, wanted) if wanted else mod


def _between_moves(graph: Graph, node: Node) -> bool:
    if node.op != "reshape" or node.name in graph.outputs or not node.operands:
        return False
    source = graph.node(node.operands[0])
    if source is None or source.op not in _MOVES or graph.sole_user(source.name) is None:
        return False
    users = [graph.nodes[u].op for u in graph.users.get(node.name, ())]
    if not users or not _MOVES.issuperset(users):
        return False
    wide, shape = shape_of(node.operands[0]), node.shape
    return wide is not None and shape is not None and _only_splits(wide, shape)


def _only_splits(source: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether every axis of ``source`` is a product of neighbouring axes of ``shape``.

    Then an element's place is a sum of products of the new indices, without a division.
    """
    left = [e for e in shape if e != 1]
    for extent in (e for e in source if e != 1):
        taken = 1
        while left and taken < extent:
            taken *= left.pop(0)
        if taken != extent:
            return False
    return not left and math.prod(source) == math.prod(shape)


def _as_kernels(mod: tvm.IRModule, graph: Graph, wanted: set[str]) -> tvm.IRModule:
    main = mod["main"]
    kernels = {gv: f for gv, f in mod.functions_items() if gv.name_hint != "main"}
    builder = relax.BlockBuilder(tvm.IRModule(kernels))
    params = [relax.Var(p.name, p.ty) for p in main.params]
    remap: dict[relax.Var, Any] = dict(zip(main.params, params, strict=True))
    with builder.function("main", params):
        with builder.dataflow():
            for node in graph.nodes.values():
                value = with_variables(node.value, remap)
                if node.name in wanted:
                    value = builder.call_te(
                        topi.reshape, value.args[0], node.shape, primfunc_name_hint="reshape"
                    )
                remap[node.var] = builder.emit(value, node.name)
            output = builder.emit_output(with_variables(main.body.body, remap))
        builder.emit_func_output(output)
    return builder.finalize()
