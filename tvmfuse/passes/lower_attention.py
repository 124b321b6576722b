"""Attention calls become kernels that read and write through the data movement around them.

Before: ``q = permute_dims(reshape(strided_slice(qkv)))``, likewise k and v, then
        ``reshape(permute_dims(attention(q, k, v)))``
After:  ``attention(qkv)``, whose record says where in ``qkv`` the elements of q, k and v lie and
        where in ``[B, S, H·D]`` those of the result belong
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tvm
from tvm import relax

from tvmfuse.errors import BuildError
from tvmfuse.fusion.attention_call import AttentionCall, ScoreStep, read_call
from tvmfuse.fusion.kernels import OPAQUE
from tvmfuse.graph import Graph, Node
from tvmfuse.hardware import Hardware
from tvmfuse.passes.operand_views import Place, moved, places, stored
from tvmfuse.passes.relax_tools import dtype_of, shape_of, with_variables
from tvmfuse.passes.views import Factors, Strided, merged, refined, whole
from tvmfuse.schedules.anchor import ATTR, Attention, Step, View, to_text
from tvmfuse.schedules.variants import variants


class _Lowering:
    """One call: how far its operands reach, and the record that follows."""

    def __init__(self, graph: Graph, node: Node, call: AttentionCall) -> None:
        self.graph, self.node, self.call = graph, node, call
        assert node.shape is not None
        self.shape = node.shape
        self.lead = node.shape[:-2]
        self._cuts: list[list[Factors]] = [[] for _ in self.lead]
        self._sources: list[Any] = []

    def record(self) -> tuple[Attention, list[Any], str]:
        """The anchor, the kernel's arguments, and the node whose value the kernel gives."""
        call = self.call
        q_shape, k_shape = shape_of(call.q), shape_of(call.k)
        assert q_shape is not None and k_shape is not None
        rows, keys, (depth, width) = self.shape[-2], k_shape[-1], (q_shape[-1], self.shape[-1])
        rank = len(self.lead)
        turned = (*range(rank), rank + 1, rank)
        q = self._deepest(call.q, (*self.lead, rows, depth), scales=True)
        k = self._deepest(call.k, (*self.lead, depth, keys), scales=True)
        k = dataclasses.replace(k, view=k.view.permute(turned))
        v = self._deepest(call.v, (*self.lead, keys, width))
        masks = [self._mask(step) for step in call.recipe.steps]
        out, out_view, result = self._output()
        extents = [refined(cuts) or () for cuts in self._cuts]
        steps = [self._step(s, m, extents) for s, m in zip(call.recipe.steps, masks, strict=True)]
        if q.scale * k.scale != 1.0:
            steps.insert(0, Step("scale", q.scale * k.scale))
        views = [self._view(p, extents) for p in (q, k, v)]
        buffers = tuple((shape_of(s) or (), dtype_of(s)) for s in self._sources)
        anchor = Attention(
            tuple(e for axis in extents for e in axis),
            rows, keys, depth, width, *views,
            out=stored(-1, out_view, extents),
            steps=tuple(steps),
            safe=call.recipe.safe,
            buffers=buffers,
            out_shape=out,
            dtype=self.node.dtype,
        )  # fmt: skip
        return anchor, self._sources, result

    # --- operands ---------------------------------------------------------------------------

    def _deepest(self, operand: Any, shape: tuple[int, ...], scales: bool = False) -> Place:
        """The operand read from as far back as the kernel's index arithmetic reaches."""
        found = None
        for place in places(self.graph, operand, scales):
            view = place.view.broadcast(shape)
            if self._fits(view):
                found = dataclasses.replace(place, view=view)
        if found is None:
            raise BuildError(
                f"operand of shape {shape_of(operand)} of {self.node.name} has no view"
            )
        self._accept(found.view)
        return found

    def _fits(self, view: Strided) -> bool:
        *lead, rows, columns = view.axes
        if merged(rows) is None or merged(columns) is None:
            return False
        cuts = [[*known, new] for known, new in zip(self._cuts, lead, strict=True)]
        return all(refined(axis) is not None for axis in cuts)

    def _accept(self, view: Strided) -> None:
        for known, new in zip(self._cuts, view.axes, strict=False):
            known.append(new)

    def _mask(self, step: ScoreStep) -> Place | None:
        if step.mask < 0:
            return None
        found = None
        for place in places(self.graph, self.call.masks[step.mask], scales=False):
            view: Strided | None = place.view.broadcast(step.shapes[0])
            for shape in (*step.shapes[1:], (*self.lead, self.shape[-2], step.shapes[0][-1])):
                view = view.reshape(shape) if view is not None else None
            if view is not None and self._fits(view):
                found = dataclasses.replace(place, view=view)
        if found is None:
            raise BuildError(f"a mask of {self.node.name} has no view in {self.shape}")
        self._accept(found.view)
        return found

    def _output(self) -> tuple[tuple[int, ...], Strided, str]:
        """Shape of what is stored, the result as a rearrangement of it, and its node."""
        best = self.shape, whole(self.shape), self.node.name
        view: Strided | None = whole(self.shape)
        name = self.node.name
        while (user := self.graph.sole_user(name)) is not None:
            node = self.graph.nodes[user]
            if node.op not in ("permute_dims", "reshape") or view is None:
                break
            view, name = moved(node.value, view), user
            back = view.inverse(self.shape) if view is not None else None
            if back is not None and node.shape is not None and self._fits(back):
                best = node.shape, back, name
        self._accept(best[1])
        return best

    # --- record -----------------------------------------------------------------------------

    def _view(self, place: Place, extents: list[tuple[int, ...]]) -> View:
        for number, known in enumerate(self._sources):
            if known is place.source or known.same_as(place.source):
                return stored(number, place.view, extents)
        self._sources.append(place.source)
        return stored(len(self._sources) - 1, place.view, extents)

    def _step(self, step: ScoreStep, place: Place | None, extents: Any) -> Step:
        view = None if place is None else self._view(place, extents)
        return Step(step.kind, step.value, step.offset, view)


@tvm.transform.module_pass(opt_level=0, name="LowerAttention")
class LowerAttention:
    """Placement: behind the last pass that changes data movement, before ``LegalizeOps``.

    Parameters
    ----------
    hardware
        The target, whose favourite variant stands in until `specialize` chooses.
    """

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        graph = Graph(mod)
        calls = {n.name: c for n in graph.nodes.values() if (c := read_call(n.value)) is not None}
        return self._rewritten(mod, graph, calls) if calls else mod

    def _rewritten(
        self, mod: tvm.IRModule, graph: Graph, calls: dict[str, AttentionCall]
    ) -> tvm.IRModule:
        main = mod["main"]
        others = {gv: f for gv, f in mod.functions_items() if gv.name_hint != "main"}
        builder = relax.BlockBuilder(tvm.IRModule(others))
        params = [relax.Var(p.name, p.ty) for p in main.params]
        remap: dict[relax.Var, Any] = dict(zip(main.params, params, strict=True))
        with builder.function("main", params):
            with builder.dataflow():
                for node in graph.nodes.values():
                    call = calls.get(node.name)
                    if call is not None:
                        lowering = _Lowering(graph, node, call)
                        result, value = self._kernel(builder, lowering, remap)
                        remap[graph.nodes[result].var] = value
                    if node.var not in remap and not _behind(graph, node, calls, remap):
                        remap[node.var] = builder.emit(with_variables(node.value, remap), node.name)
                output = builder.emit_output(with_variables(main.body.body, remap))
            builder.emit_func_output(output)
        return builder.finalize()

    def _kernel(
        self, builder: relax.BlockBuilder, lowering: _Lowering, remap: dict[relax.Var, Any]
    ) -> tuple[str, relax.Var]:
        anchor, sources, result = lowering.record()
        func = variants(anchor, self._hardware)[0].prim_func()
        func = func.with_attr(ATTR, to_text(anchor)).with_attr("op_pattern", OPAQUE)
        name = builder.add_func(func, "attention")
        ty = relax.TensorType(list(anchor.out_shape), anchor.dtype)
        arguments = [with_variables(s, remap) for s in sources]
        call = relax.call_tir(name, arguments, out_ty=ty)
        return result, builder.emit(call, lowering.node.name)


def _behind(graph: Graph, node: Node, calls: Any, remap: Any) -> bool:
    """Whether a node is an attention call or a move behind it that its kernel has taken over."""
    return node.name in calls or any(
        isinstance(o, relax.Var) and o not in remap for o in node.operands
    )
