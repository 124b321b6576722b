"""Carry out merges: the operators of a match are replaced by what its rule emits.

Before: ``q = matmul(x, Wq); k = matmul(x, Wk)``
After:  ``m = matmul(x, concat(Wq, Wk)); q = m[:, :n]; k = m[:, n:]``
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from tvmfuse.fusion.merging import Merge
from tvmfuse.graph import Graph
from tvmfuse.passes.relax_tools import with_variables


def apply_merges(
    mod: tvm.IRModule,
    graph: Graph,
    merges: tuple[Merge, ...],
    origins: dict[str, str] | None = None,
) -> tvm.IRModule:
    """Return ``mod`` with every merge carried out at the place of its first result.

    The origins of the results (`tvmfuse.workload.Workload`) are handed on, in place.
    """
    origins = {} if origins is None else origins
    at = {min(m.match.outputs, key=graph.position.__getitem__): m for m in merges}
    gone = {name for m in merges for name in m.match.members}
    main = mod["main"]
    others = {gv: f for gv, f in mod.functions_items() if gv.name_hint != "main"}
    builder = relax.BlockBuilder(tvm.IRModule(others))
    params = [relax.Var(p.name, p.ty) for p in main.params]
    remap: dict[relax.Var, Any] = dict(zip(main.params, params, strict=True))
    with builder.function("main", params):
        with builder.dataflow():
            for node in graph.nodes.values():
                if node.name in at:
                    results = _carried_out(graph, at[node.name], builder, remap)
                    remap.update(results)
                    for old, new in results.items():
                        if isinstance(new, relax.Var) and str(old.name) in origins:
                            origins[str(new.name)] = origins[str(old.name)]
                elif node.name not in gone:
                    remap[node.var] = builder.emit(with_variables(node.value, remap), node.name)
            output = builder.emit_output(with_variables(main.body.body, remap))
        builder.emit_func_output(output)
    return builder.finalize()


def _carried_out(
    graph: Graph, merge: Merge, builder: relax.BlockBuilder, remap: dict[relax.Var, Any]
) -> dict[relax.Var, Any]:
    results = merge.rule.rewrite(graph, merge.match, _Remapped(builder, remap))
    return {graph.nodes[name].var: results[name] for name in merge.match.outputs}


class _Remapped:
    """A builder that replaces variables of the old module in what it is given to emit."""

    def __init__(self, builder: relax.BlockBuilder, remap: dict[relax.Var, Any]) -> None:
        self._builder = builder
        self._remap = remap

    def emit(self, value: Any) -> relax.Var:
        """Emit an expression over old variables, or over results of this builder."""
        known = dict(self._remap)
        for leaf in Graph.leaves(value):
            known.setdefault(leaf, leaf)
        return self._builder.emit(with_variables(value, known))
