"""Reductions for GPUs, on the emulator: rows by warps, columns by blocks, one launch each."""

import numpy as np
import pytest
from tvm import te, topi

from tvmfuse.codegen import emulate as emulation
from tvmfuse.hardware import resolve_target
from tvmfuse.schedules import schedule_by_template
from tvmfuse.schedules.cuda.reduction import by_columns, by_rows

pytestmark = pytest.mark.skipif(bool(emulation.missing()), reason=emulation.missing())
T4 = resolve_target("t4")
ROWS = [(5, 1000), (3, 17), (13, 129), (1, 4099), (700, 33), (2, 3, 16), (1, 32)]
IMAGES = [(1, 7, 7, 40), (2, 5, 5, 33), (1, 4, 4, 1), (3, 13, 13, 64)]


def func_of(*tensors):
    return te.create_prim_func(list(tensors), index_dtype_override="int64")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def check(kit, func, inputs, want, template="cuda.reduction"):
    name, got = kit.emulated(func, T4, inputs, want.shape)
    assert name == template
    kit.assert_close(got, want, 1e-5)
    scheduled = schedule_by_template(func, T4)[0].mod["main"]
    assert len(emulation.cuda_text(scheduled, T4.target_json).launches) == 1


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_softmax(kit, shape):
    x, value = te.placeholder(shape, name="x"), normal(*shape)
    parts = np.exp(value.astype("float64") - value.max(axis=-1, keepdims=True))
    want = parts / parts.sum(axis=-1, keepdims=True)
    check(kit, func_of(x, topi.nn.softmax(x + 1.0, axis=-1) * 2.0), [value], 2 * want)


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_a_sum_with_and_without_an_epilogue(kit, shape):
    x, value = te.placeholder(shape, name="x"), normal(*shape)
    want = value.astype("float64").sum(axis=-1)
    check(kit, func_of(x, topi.sum(x, axis=-1)), [value], want)
    check(
        kit, func_of(x, topi.nn.relu(topi.sum(x, axis=-1) * 0.5)), [value], np.maximum(want, 0) / 2
    )


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_a_norm_of_two_sums(kit, shape):
    x, gain = te.placeholder(shape, name="x"), te.placeholder(shape[-1:], name="gain")
    width = float(shape[-1])
    k, q = te.reduce_axis((0, shape[-1]), "k"), te.reduce_axis((0, shape[-1]), "q")
    mean = te.compute(shape[:-1], lambda *at: te.sum(x(*at, k), axis=[k]), name="total")
    spread = te.compute(
        shape[:-1],
        lambda *at: te.sum(
            (x(*at, q) - mean(*at) / width) * (x(*at, q) - mean(*at) / width), axis=[q]
        ),
        name="spread",
    )
    out = te.compute(
        shape,
        lambda *at: (
            (x(*at) - mean(*at[:-1]) / width)
            / te.sqrt(spread(*at[:-1]) / width + 1e-5)
            * gain(at[-1])
        ),
        name="norm",
    )
    value, factor = normal(*shape), normal(*shape[-1:], seed=1)
    wide = value.astype("float64")
    centred = wide - wide.mean(-1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * factor
    check(kit, func_of(x, gain, out), [value, factor], want)


@pytest.mark.parametrize("shape", IMAGES, ids=str)
def test_a_mean_of_images_with_channels_last(kit, shape):
    x, value = te.placeholder(shape, name="x"), normal(*shape)
    want = value.astype("float64").mean((1, 2))
    mean = topi.sum(x, axis=(1, 2)) / float(shape[1] * shape[2])
    check(kit, func_of(x, topi.nn.relu(mean)), [value], np.maximum(want, 0))
    kept = topi.sum(x, axis=(1, 2), keepdims=True)
    check(kit, func_of(x, kept), [value], value.astype("float64").sum((1, 2), keepdims=True))


@pytest.mark.parametrize("shape", [(1, 12, 7, 7), (2, 3, 5, 11)], ids=str)
def test_a_mean_of_images_with_channels_first(kit, shape):
    x, value = te.placeholder(shape, name="x"), normal(*shape)
    mean = topi.sum(x, axis=(2, 3)) / float(shape[2] * shape[3])
    check(kit, func_of(x, mean), [value], value.astype("float64").mean((2, 3)))


def test_a_sum_of_everything(kit):
    x, value = te.placeholder((31, 3, 5), name="x"), normal(31, 3, 5)
    check(kit, func_of(x, topi.sum(x)), [value], np.asarray(value.astype("float64").sum()))


def test_short_sums_and_products_are_left_to_others():
    for shape, axis in (((64, 9), -1), ((4, 3, 5), 1)):
        x = te.placeholder(shape, name="x")
        assert schedule_by_template(func_of(x, topi.sum(x, axis=axis)), T4)[1] == "cuda.window"
    x, y = te.placeholder((4, 5, 64), name="x"), te.placeholder((4, 64, 6), name="y")
    both = topi.nn.softmax(topi.nn.batch_matmul(x, y, transpose_b=False), axis=-1)
    assert schedule_by_template(func_of(x, y, both), T4)[1] == "cuda.fallback"


def test_threads_follow_rows_and_terms():
    gpu = T4.gpu
    assert (by_rows(4096, 768, gpu).threads, by_rows(4096, 768, gpu).sums) == (32, 8)
    assert by_rows(1, 50000, gpu).threads == 256
    assert by_rows(3, 40, gpu).threads == 32
    assert by_columns(2048, 49, gpu).threads * by_columns(2048, 49, gpu).sums <= 1024
