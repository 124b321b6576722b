"""The emulator runs kernels right, and sees what is planted in them."""

import re

import numpy as np
import pytest
from tvm import te
from tvm.s_tir import Schedule

from tvmfuse.codegen import emulate as emulation
from tvmfuse.codegen.emulate import CudaText, Emulated, cuda_text, emulate
from tvmfuse.hardware import resolve_target
from tvmfuse.schedules.cuda.fallback import FallbackTemplate

pytestmark = pytest.mark.skipif(bool(emulation.missing()), reason=emulation.missing())
T4 = resolve_target("t4")


def row_sums(rows=5, columns=300):
    """``exp(a) - sum(a)``: two launches, a workspace, shuffles and shared memory."""
    a = te.placeholder((rows, columns), name="a")
    k = te.reduce_axis((0, columns), "k")
    total = te.compute((rows,), lambda i: te.sum(a[i, k], axis=[k]), name="total")
    out = te.compute((rows, columns), lambda i, j: te.exp(a[i, j]) - total[i], name="out")
    func = te.create_prim_func([a, out], index_dtype_override="int64")
    return FallbackTemplate().apply(func, T4, False)[0].mod["main"]


def reversed_rows(threads=64):
    """Each block turns a row around through shared memory: needs one barrier."""
    a = te.placeholder((3, threads), name="a")
    out = te.compute((3, threads), lambda i, j: a[i, threads - 1 - j], name="out")
    sch = Schedule(te.create_prim_func([a, out], index_dtype_override="int64"))
    block = sch.get_sblock("out")
    i, j = sch.get_loops(block)
    sch.bind(i, "blockIdx.x")
    staged = sch.cache_read(block, 0, "shared")
    sch.compute_at(staged, i)
    sch.bind(j, "threadIdx.x")
    sch.bind(sch.get_loops(staged)[-1], "threadIdx.x")
    return sch.mod["main"]


def planted(func, pattern, replacement):
    """The kernel with its text changed in one place."""
    text = cuda_text(func, T4.target_json)
    source, count = re.subn(pattern, replacement, text.source, count=1)
    assert count == 1
    return Emulated(CudaText(source, text.launches, text.parameters, text.workspaces))


def rows(shape=(3, 64)):
    a = np.random.default_rng(0).standard_normal(shape).astype("float32")
    return a, np.full(shape, np.nan, "float32")


def test_sums_by_shuffles_over_two_launches():
    a, out = rows((5, 300))
    assert emulate(row_sums(), T4.target_json, [a, out]) == ""
    want = np.exp(a.astype("float64")) - a.sum(axis=1, keepdims=True, dtype="float64")
    assert np.abs(out - want).max() < 1e-4


def test_shared_memory_between_barriers():
    a, out = rows()
    assert emulate(reversed_rows(), T4.target_json, [a, out]) == ""
    assert (out == a[:, ::-1]).all()


@pytest.mark.parametrize("backwards", [False, True])
def test_a_missing_barrier_is_seen(backwards):
    kernel = planted(reversed_rows(), r"__syncthreads\(\);", "")
    kernel(*rows(), backwards=backwards)
    assert "race at byte" in kernel.faults and "a_shared" in kernel.faults


def test_a_tail_out_of_bounds_is_seen():
    kernel = planted(row_sums(), r"if \(\(\(\(\(int\)blockIdx\.x\) \* 8\).*\) \{", "if (true) {")
    kernel(*rows((5, 300)))
    assert "outside of out" in kernel.faults or "outside of a" in kernel.faults


def test_shared_memory_out_of_bounds_is_seen():
    kernel = planted(reversed_rows(), r"a_shared_ptr\[\(63", "a_shared_ptr[(64")
    kernel(*rows())
    assert "outside of a_shared" in kernel.faults


def test_a_barrier_that_not_all_threads_reach_is_seen():
    kernel = planted(
        reversed_rows(), r"__syncthreads\(\);", "if (((int)threadIdx.x) < 32) __syncthreads();"
    )
    kernel(*rows())
    assert "barrier reached by 32 threads of 64" in kernel.faults
