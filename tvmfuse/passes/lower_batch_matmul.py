"""Products of two activations become anchors that read their operands where they are stored.

Before: ``matmul(x, permute_dims(reshape(y)))`` with neither operand constant
After:  one kernel with a `BatchMatmul` record; `specialize` swaps in one of its variants
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvmfuse.graph import Graph, Node
from tvmfuse.passes.operand_views import Place, places, stored
from tvmfuse.passes.relax_tools import dtype_of, shape_of, with_variables
from tvmfuse.passes.views import merged
from tvmfuse.schedules.anchor import ATTR, BatchMatmul, to_text
from tvmfuse.schedules.cpu.batch_matmul import RTOL, naive
from tvmfuse.schedules.variant import OUT_ELEMWISE_FUSABLE


def batch_matmul_anchor(graph: Graph, node: Node) -> tuple[BatchMatmul, list[Any]] | None:
    """The record of a product and what the kernel reads; None when it is not one of ours."""
    if node.op != "matmul" or node.shape is None or node.dtype not in RTOL:
        return None
    x, y = node.value.args[:2]
    x_shape, y_shape = shape_of(x) or (), shape_of(y) or ()
    if min(len(x_shape), len(y_shape)) < 2 or 0 in x_shape or 0 in y_shape:
        return None
    if dtype_of(x) not in RTOL or dtype_of(y) not in RTOL:
        return None
    if isinstance(y, GenericConst) and len(y_shape) == 2:
        return None  # a dense layer, whose weight is packed when it is compiled
    lead = node.shape[:-2]
    sources: list[Any] = []
    views = []
    for operand, shape in ((x, x_shape), (y, y_shape)):
        place = _deepest(graph, operand, (*lead, *shape[-2:]))
        if not any(s.same_as(place.source) for s in sources):
            sources.append(place.source)
        number = next(i for i, s in enumerate(sources) if s.same_as(place.source))
        views.append(stored(number, place.view, [(extent,) for extent in lead]))
    buffers = tuple((shape_of(s) or (), dtype_of(s)) for s in sources)
    sizes = x_shape[-2], x_shape[-1], y_shape[-1]
    return BatchMatmul(lead, *sizes, *views, buffers=buffers, dtype=node.dtype), sources


def _deepest(graph: Graph, operand: Any, shape: tuple[int, ...]) -> Place:
    """The operand read from as far back as each axis has one stride."""
    found = None
    for place in places(graph, operand, scales=False):
        view = place.view.broadcast(shape)
        if all(merged(axis) is not None for axis in view.axes):
            found = Place(place.source, view)
    assert found is not None  # the operand itself is always such a place
    return found


@tvm.transform.module_pass(opt_level=0, name="LowerBatchMatmul")
class LowerBatchMatmul:
    """Placement: behind the last pass that changes data movement, before ``LegalizeOps``."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        graph = Graph(mod)
        anchors = {n: a for n, v in graph.nodes.items() if (a := batch_matmul_anchor(graph, v))}
        if not anchors:
            return mod
        main = mod["main"]
        others = {gv: f for gv, f in mod.functions_items() if gv.name_hint != "main"}
        builder = relax.BlockBuilder(tvm.IRModule(others))
        params = [relax.Var(p.name, p.ty) for p in main.params]
        remap: dict[relax.Var, Any] = dict(zip(main.params, params, strict=True))
        with builder.function("main", params):
            with builder.dataflow():
                for node in graph.nodes.values():
                    value = with_variables(node.value, remap)
                    if node.name in anchors:
                        anchor, sources = anchors[node.name]
                        arguments = [with_variables(s, remap) for s in sources]
                        value = _kernel(builder, anchor, arguments, node)
                    remap[node.var] = builder.emit(value, node.name)
                output = builder.emit_output(with_variables(main.body.body, remap))
            builder.emit_func_output(output)
        return builder.finalize()


def _kernel(
    builder: relax.BlockBuilder, anchor: BatchMatmul, arguments: list[Any], node: Node
) -> relax.Call:
    func = naive(anchor).without_attr("global_symbol").with_attr(ATTR, to_text(anchor))
    name = builder.add_func(func.with_attr("op_pattern", OUT_ELEMWISE_FUSABLE), "matmul")
    return relax.call_tir(name, arguments, out_ty=node.var.ty)
