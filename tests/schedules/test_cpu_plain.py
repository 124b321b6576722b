"""The schedule that checks other devices' kernels: right, and no sum is left in its own order."""

import numpy as np
import pytest
import tvm
from tvm import te, topi

from tvmfuse.hardware import resolve_target
from tvmfuse.schedules import base
from tvmfuse.schedules.anchor import Conv2d, Dense
from tvmfuse.schedules.cpu.plain import plain_schedule
from tvmfuse.schedules.cuda.gemm import gemm_conv2d, gemm_dense
from tvmfuse.schedules.cuda.variants import conv2d

HARDWARE = resolve_target("llvm", 2)
CONV = Conv2d(1, 7, 5, 3, 11, 3, 3, (2, 2), (1, 1, 1, 1), (1, 1), 1, "float32")
DEPTHWISE = Conv2d(1, 9, 8, 6, 6, 3, 3, (1, 1), (1, 1, 1, 1), (1, 1), 6, "float32")


@pytest.mark.parametrize(
    "variant",
    [
        conv2d(CONV),
        conv2d(DEPTHWISE),
        gemm_conv2d(CONV),
        gemm_dense(Dense((), 13, 31, 17, "float32")),
    ],
    ids=["direct", "depthwise", "gemm", "dense"],
)
def test_sums_are_taken_in_vectors_and_right(variant):
    x = te.placeholder(variant.input_shape, name="x")
    w = te.placeholder(variant.weight_shape, name="w")
    y = topi.nn.relu(variant.compute(x, w))
    func = te.create_prim_func([x, w, y], index_dtype_override="int64")
    schedule = plain_schedule(func, HARDWARE)
    assert any(block.name.endswith("_init") for block in base.blocks(schedule))
    target = tvm.target.Target(HARDWARE.target_json)
    random = np.random.default_rng(0)
    arrays = [
        random.standard_normal(shape).astype("float32")
        for shape in (variant.input_shape, variant.weight_shape)
    ]
    shape = [int(extent) for extent in y.shape]
    results = []
    for module in (schedule.mod, tvm.IRModule({"main": func})):  # scheduled, and as it is
        out = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
        tvm.compile(module, target=target)["main"](*map(tvm.runtime.tensor, arrays), out)
        results.append(out.numpy())
    assert np.abs(results[0] - results[1]).max() <= 1e-5 * np.abs(results[1]).max()


def test_a_kernel_without_a_spatial_axis_keeps_its_order():
    x = te.placeholder((37,), name="x")
    func = te.create_prim_func([x, topi.sum(x)], index_dtype_override="int64")
    assert [b.kinds for b in base.blocks(plain_schedule(func, HARDWARE))] == ["R"]
