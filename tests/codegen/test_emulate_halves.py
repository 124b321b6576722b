"""Halves and fragments on the emulator: rounding as NumPy's, planted faults are seen."""

import re

import ml_dtypes
import numpy as np
import pytest
from tvm import te
from tvm.s_tir import Schedule

from tvmfuse.codegen import emulate as emulation
from tvmfuse.codegen.emulate import CudaText, Emulated, cuda_text, emulate
from tvmfuse.hardware import resolve_target
from tvmfuse.schedules.anchor import Dense
from tvmfuse.schedules.cuda.gemm import gemm_dense
from tvmfuse.schedules.cuda.tensor import FAMILY, TensorTemplate

pytestmark = pytest.mark.skipif(bool(emulation.missing()), reason=emulation.missing())
A100 = resolve_target("a100-40")
HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def cast(source, target, count=64):
    a = te.placeholder((count,), source, name="a")
    out = te.compute((count,), lambda i: a[i].astype(target), name="out")
    sch = Schedule(te.create_prim_func([a, out], index_dtype_override="int64"))
    block, thread = sch.split(sch.get_loops(sch.get_sblock("out"))[0], [None, 32])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return sch.mod["main"]


EDGES = [0.0, -0.0, 1.0, 1 + 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 65504, 65519.9, 65520, 1e-8,
         6e-8, 5.9e-8, 2.0**-14, 2.0**-24, 2.0**-25, 3 * 2.0**-25, -7e4, np.inf, -np.inf,
         3.39e38]  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_and_widening(dtype):
    rng = np.random.default_rng(0)
    x = np.array([*EDGES, *rng.standard_normal(44)], "float32")
    with np.errstate(over="ignore"):
        want = x.astype(HALVES[dtype])
    out = np.zeros(64, HALVES[dtype])
    assert emulate(cast("float32", dtype), A100.target_json, [x, out]) == ""
    assert out.tobytes() == want.tobytes()
    wide = np.zeros(64, "float32")
    assert emulate(cast(dtype, "float32"), A100.target_json, [want, wide]) == ""
    assert (wide == want.astype("float32")).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_nan_stays(dtype):
    x, out = np.full(64, np.nan, "float32"), np.zeros(64, HALVES[dtype])
    emulate(cast("float32", dtype), A100.target_json, [x, out])
    assert np.isnan(out.astype("float32")).all()


def planted(pattern, replacement):
    """A product on fragments with its text changed in one place, run once."""
    variant = gemm_dense(Dense((), 16, 32, 16, "float16", "float32"), FAMILY)
    schedule = TensorTemplate().apply(variant.prim_func(), A100, False)[0]
    text = cuda_text(schedule.mod["main"], A100.target_json)
    source, count = re.subn(pattern, replacement, text.source, count=1)
    assert count == 1
    kernel = Emulated(CudaText(source, text.launches, text.parameters, text.workspaces))
    x = np.random.default_rng(0).standard_normal((16, 32)).astype("float16")
    w = variant.pack(np.ones((32, 16), "float16"))
    kernel(x, w, np.zeros((16, 16), "float32"))
    return kernel.faults


def test_a_missing_barrier_before_fragments_are_loaded_is_seen():
    assert "race at byte" in planted(r"__syncthreads\(\);(\s*nvcuda::wmma::load)", r"\1")


def test_a_fragment_at_an_odd_address_is_seen():
    faults = planted(r"(load_matrix_sync\(\w+\[0\], \(&\(\w+\[)", r"\1 8 + ")
    assert "not aligned" in faults
