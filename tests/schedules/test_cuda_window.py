"""Pooling windows and other short sums for GPUs, on the emulator."""

import numpy as np
import pytest
from tvm import te, topi

from tvmfuse.codegen import emulate as emulation
from tvmfuse.hardware import resolve_target
from tvmfuse.schedules import schedule_by_template

pytestmark = pytest.mark.skipif(bool(emulation.missing()), reason=emulation.missing())
T4, NANO = resolve_target("t4"), resolve_target("jetson-nano")


def func_of(*tensors):
    return te.create_prim_func(list(tensors), index_dtype_override="int64")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("hardware", [T4, NANO], ids=["t4", "jetson-nano"])
@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("shape", [(1, 7, 7, 8), (2, 5, 5, 33), (1, 31, 33, 64)], ids=str)
def test_pooling_with_padding_and_an_epilogue(kit, shape, kind, hardware):
    torch = pytest.importorskip("torch")
    x, value = te.placeholder(shape, name="x"), normal(*shape)
    y = topi.nn.pool2d(x, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], kind, layout="NHWC")
    first = torch.tensor(value).permute(0, 3, 1, 2)
    pool = torch.nn.functional.max_pool2d if kind == "max" else torch.nn.functional.avg_pool2d
    want = pool(first, 3, 2, 1).relu().permute(0, 2, 3, 1).numpy()
    name, got = kit.emulated(func_of(x, topi.nn.relu(y)), hardware, [value], want.shape)
    assert name == "cuda.window"
    kit.assert_close(got, want, 1e-6)


def test_many_results_are_read_and_written_as_vectors():
    x = te.placeholder((1, 64, 64, 64), name="x")
    pool = topi.nn.pool2d(x, [2, 2], [2, 2], [1, 1], [0, 0, 0, 0], "max", layout="NHWC")
    scheduled = schedule_by_template(func_of(x, pool), NANO)[0].mod["main"]
    text = emulation.cuda_text(scheduled, NANO.target_json)
    assert text.source.count("float4*)") >= 4 and len(text.launches) == 1


@pytest.mark.parametrize("shape", [(64, 9), (3, 5), (1, 1)], ids=str)
def test_short_rows(kit, shape):
    x, value = te.placeholder(shape, name="x"), normal(*shape)
    name, got = kit.emulated(func_of(x, topi.sum(x, axis=-1)), T4, [value], shape[:1])
    assert name == "cuda.window"
    kit.assert_close(got, value.astype("float64").sum(-1), 1e-6)


def test_two_sums_are_refused():
    x = te.placeholder((8, 9), name="x")
    assert schedule_by_template(func_of(x, topi.nn.softmax(x)), T4)[1] != "cuda.window"
