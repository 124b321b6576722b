"""Compile one scheduled kernel and compare it with its definition in float64."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from tvmfuse.hardware import Hardware, resolve_target
from tvmfuse.schedules import schedule_by_template, space
from tvmfuse.schedules.anchor import Conv2d, Dense
from tvmfuse.schedules.cpu.amx import with_tile_instructions
from tvmfuse.schedules.merge import Step, merged

CORES = 2
LOCAL = resolve_target("llvm", CORES)


def machine(vector_bytes=64, vector_registers=32, **change):
    """The machine that is here, with vectors as asked for: LLVM splits what is too wide."""
    values = {f: getattr(LOCAL, f) for f in LOCAL.__dataclass_fields__}
    values |= {"vector_bytes": vector_bytes, "vector_registers": vector_registers, **change}
    return Hardware(**values)


AVX512, AVX2 = machine(), machine(32, 16)


def conv(n, h, w, c, o, k=3, stride=1, pad=0, dilation=1, groups=1, dtype="float32"):
    """A convolution record; ``k``, ``stride``, ``pad``, ``dilation`` may be numbers or tuples."""
    pair = lambda v: v if isinstance(v, tuple) else (v, v)  # noqa: E731
    kh, kw = pair(k)
    pads = pad if isinstance(pad, tuple) else (pad,) * 4
    return Conv2d(n, h, w, c, o, kh, kw, pair(stride), pads, pair(dilation), groups, dtype)


def weight_of(anchor, rng):
    """A logical weight: OHWI, or [K, O]."""
    if isinstance(anchor, Dense):
        return rng.standard_normal((anchor.K, anchor.O)).astype(anchor.dtype)
    shape = (anchor.O, anchor.KH, anchor.KW, anchor.C // anchor.groups)
    return rng.standard_normal(shape).astype(anchor.dtype)


def definition(anchor, x, w):
    """The anchor's result in float64, by torch."""
    import torch

    x, w = torch.from_numpy(x).double(), torch.from_numpy(w).double()
    if isinstance(anchor, Dense):
        return (x @ w).numpy()
    top, left, bottom, right = anchor.pad
    padded = torch.nn.functional.pad(x.permute(0, 3, 1, 2), (left, right, top, bottom))
    y = torch.nn.functional.conv2d(
        padded,
        w.permute(0, 3, 1, 2),
        stride=anchor.stride,
        dilation=anchor.dilation,
        groups=anchor.groups,
    )
    return y.permute(0, 2, 3, 1).numpy()


def kernel(variant, epilogue=""):
    """The variant's PrimFunc ``(x, w, *operands, y)`` with ``""``, ``bias`` or ``residual``."""
    conv = variant.prim_func()
    if not epilogue:
        return conv
    dtype = variant.anchor.dtype
    shapes = [[int(e) for e in p.ty.shape] for p in conv.params]
    y = te.placeholder(shapes[-1], dtype, name="y")
    b = te.placeholder(shapes[-1][-1:], dtype, name="b")
    r = te.placeholder(shapes[-1], dtype, name="r")
    zero = tirx.const(0, dtype)
    bias = ("add", lambda v, b: lambda *i: v(*i) + b(i[-1]), [b])
    add = ("add_1", lambda v, r: lambda *i: v(*i) + r(*i), [r])
    relu = ("relu", lambda v: lambda *i: tirx.Select(v(*i) < zero, zero, v(*i)), [])
    epilogues = [bias] if epilogue == "bias" else [bias, add, relu]
    operand = len(shapes) - 1
    inputs = [*shapes[:-1], *([int(e) for e in o.shape] for *_, mine in epilogues for o in mine)]
    steps = [Step(conv, tuple(range(operand)))]
    for name, body, mine in epilogues:
        made = te.compute(y.shape, body(y, *mine), name)
        func = te.create_prim_func([y, *mine, made], index_dtype_override="int64")
        value = len(inputs) + len(steps) - 1
        steps.append(Step(func, (value, *range(operand, operand + len(mine)))))
        operand += len(mine)
    return merged(inputs, dtype, steps)


def run(func, inputs, shape, dtype="float32"):
    """Compile a PrimFunc and call it; the output starts as NaN, so that gaps are seen."""
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    module = with_tile_instructions(module)
    executable = tvm.compile(module, target=tvm.target.Target(LOCAL.target_json))
    fill = np.nan if np.dtype(dtype).kind == "f" else 77
    out = tvm.runtime.tensor(np.full(shape, fill, dtype))
    executable["main"](*[tvm.runtime.tensor(np.ascontiguousarray(i)) for i in inputs], out)
    return out.numpy()


def assert_close(got, want, rtol):
    """Largest error against the largest magnitude of ``want``."""
    assert got.shape == want.shape
    assert not np.isnan(got).any()
    magnitude = max(np.abs(want).max(), 1e-30)
    assert np.abs(got - want).max() <= rtol * magnitude, (
        f"error {np.abs(got - want).max() / magnitude:.2e} of the largest magnitude"
    )


class Case:
    """One variant with data: check any schedule of its kernel."""

    def __init__(self, variant, epilogue="", seed=0):
        rng = np.random.default_rng(seed)
        self.variant, self.func = variant, kernel(variant, epilogue)
        x = rng.standard_normal(variant.input_shape).astype(variant.anchor.dtype)
        w = weight_of(variant.anchor, rng)
        packed = variant.pack(w)
        assert packed.shape == variant.weight_shape and packed.dtype == variant.anchor.dtype
        self.want = definition(variant.anchor, x, w)
        self.inputs = [x, packed]
        if epilogue:
            self.inputs.append(rng.standard_normal(self.want.shape[-1]).astype(x.dtype))
            self.want = self.want + self.inputs[-1]
        if epilogue == "residual":
            self.inputs.append(rng.standard_normal(self.want.shape).astype(x.dtype))
            self.want = np.maximum(self.want + self.inputs[-1], 0)

    def check(self, scheduled):
        """The scheduled PrimFunc computes the definition."""
        got = run(scheduled, self.inputs, self.want.shape, self.variant.anchor.dtype)
        assert_close(got, self.want, self.variant.rtol)

    def check_default(self, hardware, template, vector=True):
        """The default schedule is ``template``'s, is right and is no naive loop."""
        schedule, name = schedule_by_template(self.func, hardware)
        assert name == template
        assert_not_naive(schedule, vector)
        self.check(schedule.mod["main"])
        return schedule


def assert_not_naive(schedule, vector=True):
    """A parallel loop, and a vectorised one where ``vector``."""
    text = schedule.mod["main"].script()
    assert "T.parallel(" in text
    if vector:
        assert "T.vectorized(" in text


def categoricals(schedule):
    """Decisions of the trace: instruction and decision."""
    pairs = schedule.trace.decisions.items()
    return [(inst, d) for inst, d in pairs if inst.kind.name == "SampleCategorical"]


def resampled(func, schedule, seed):
    """Replay the trace without its decisions on a fresh schedule."""
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    fresh = Schedule(module, seed=seed)
    free = tvm.s_tir.schedule.Trace(schedule.trace.insts, {})
    free.apply_to_schedule(fresh, remove_postproc=False)
    return fresh


def check_space(case, hardware, at_least=1):
    """Every tunable schedule is right, and its trace replays with other decisions."""
    found = space(case.func, hardware)
    assert len(found) >= at_least
    for number, schedule in enumerate(found):
        case.check(schedule.mod["main"])
        again = resampled(case.func, schedule, seed=number + 1)
        assert len(categoricals(again)) == len(categoricals(schedule))
        case.check(again.mod["main"])
    return found


def emulated(func, hardware, inputs, shape, dtype="float32"):
    """Schedule by the templates for a GPU and run on the emulator; template and result."""
    from tvmfuse.codegen.emulate import emulate
    from tvmfuse.schedules.cuda.binding import launches

    schedule, name = schedule_by_template(func, hardware)
    scheduled = schedule.mod["main"]
    fits = launches(scheduled, hardware.gpu)
    assert fits, fits.reason
    out = np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 77, dtype)
    faults = emulate(scheduled, hardware.target_json, [*inputs, out])
    assert not faults, faults
    return name, out


@pytest.fixture(scope="session")
def kit():
    """This file's functions and machines."""
    return sys.modules[__name__]
