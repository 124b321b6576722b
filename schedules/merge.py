"""Several kernels in a row as one, before anything is scheduled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax
from tvm.tirx import PrimFunc

from tvmfuse.schedules.variant import OUT_ELEMWISE_FUSABLE


@dataclass(frozen=True)
class Step:
    """One kernel ``(*operands, out)``.

    Parameters
    ----------
    kernel
        Its function.
    operands
        What it reads: numbers of the merged kernel's inputs, and behind them those of the steps.
    """

    kernel: PrimFunc
    operands: tuple[int, ...]


def merged(
    inputs: Sequence[Sequence[int]], dtype: str | Sequence[str], steps: Sequence[Step]
) -> PrimFunc:
    """One kernel ``(*inputs, out)`` that holds the blocks of all steps.

    Parameters
    ----------
    inputs
        Their shapes.
    dtype
        Element type of all inputs, or of each; results have that of their kernels.
    steps
        In order; the last one's result is the kernel's.
    """
    builder = relax.BlockBuilder()

    def variables() -> list[relax.Var]:
        types = [dtype] * len(inputs) if isinstance(dtype, str) else dtype
        pairs = zip(inputs, types, strict=True)
        return [relax.Var(f"p{i}", relax.TensorType(s, d)) for i, (s, d) in enumerate(pairs)]

    values = variables()
    with builder.function("fused", values, attrs={"Primitive": True}, private=True):
        values = list(values)
        with builder.dataflow():
            for number, step in enumerate(steps):
                kernel = step.kernel.without_attr("global_symbol")
                if "op_pattern" not in (kernel.attrs or {}):
                    kernel = kernel.with_attr("op_pattern", OUT_ELEMWISE_FUSABLE)
                shape = [int(extent) for extent in kernel.params[-1].ty.shape]
                call = relax.call_tir(
                    builder.add_func(kernel, f"step{number}"),
                    [values[i] for i in step.operands],
                    out_ty=relax.TensorType(shape, str(kernel.params[-1].ty.dtype)),
                )
                values.append(builder.emit(call))
            out = builder.emit_output(values[-1])
        fused = builder.emit_func_output(out)
    outer = variables()
    with builder.function("main", outer):
        with builder.dataflow():
            out = builder.emit_output(relax.Call(fused, outer))
        builder.emit_func_output(out)
    made = relax.transform.FuseTIR()(builder.finalize())
    (kernel,) = (f for _, f in made.functions_items() if isinstance(f, PrimFunc))
    return kernel.with_attr("op_pattern", OUT_ELEMWISE_FUSABLE).with_attr("tirx.noalias", True)
