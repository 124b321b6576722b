"""CUDA fallback and element-wise templates: run on the emulator, over awkward shapes."""

import numpy as np
import pytest
from tvm import te, tirx, topi
from tvm.s_tir import Schedule

from tvmfuse.codegen import emulate as emulation
from tvmfuse.codegen.emulate import emulate
from tvmfuse.hardware import resolve_target
from tvmfuse.schedules import schedule_by_template
from tvmfuse.schedules.anchor import Conv2d, Dense
from tvmfuse.schedules.cuda.binding import launches
from tvmfuse.schedules.cuda.variants import conv2d, dense

pytestmark = pytest.mark.skipif(bool(emulation.missing()), reason=emulation.missing())
T4 = resolve_target("t4")


def run(func, *inputs, out_shape, dtype="float32"):
    """Schedule by the templates, run with the threads in both orders; result and template."""
    schedule, name = schedule_by_template(func, T4)
    kernel = schedule.mod["main"]
    assert launches(kernel, T4.gpu)
    out = np.full(out_shape, 99, dtype)
    assert emulate(kernel, T4.target_json, [*inputs, out]) == ""
    return out, name


def close(got, want, rtol=1e-5):
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= rtol * max(1.0, np.abs(want).max())


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def func_of(*tensors):
    return te.create_prim_func(list(tensors), index_dtype_override="int64")


@pytest.mark.parametrize("shape", [(1,), (7, 13), (1, 3, 17, 5), (257, 33)])
def test_elementwise_with_tails(shape):
    x = te.placeholder(shape, name="x")
    value = normal(*shape)
    got, name = run(func_of(x, topi.nn.relu(x + 1.0)), value, out_shape=shape)
    assert name == "cuda.injective"
    close(got, np.maximum(value + 1, 0))


@pytest.mark.parametrize("shape", [(5, 7), (64, 33), (1, 1)])
def test_transposes_and_broadcasts(shape):
    x, row = te.placeholder(shape, name="x"), te.placeholder((shape[0],), name="row")
    value, added = normal(*shape), normal(shape[0], seed=1)
    got, _ = run(func_of(x, row, topi.transpose(x) + row), value, added, out_shape=shape[::-1])
    close(got, value.T + added)


def test_concatenation_of_unequal_parts():
    a, b = te.placeholder((3, 5), name="a"), te.placeholder((3, 11), name="b")
    left, right = normal(3, 5), normal(3, 11, seed=1)
    got, _ = run(func_of(a, b, topi.concatenate([a, b], axis=1)), left, right, out_shape=(3, 16))
    close(got, np.concatenate([left, right], axis=1))


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 129), (5, 1000), (1, 4099)])
def test_softmax_of_rows(shape):
    x = te.placeholder(shape, name="x")
    value = normal(*shape)
    got, _ = run(func_of(x, topi.nn.softmax(x, axis=-1)), value, out_shape=shape)
    parts = np.exp(value.astype("float64") - value.max(axis=1, keepdims=True))
    close(got, parts / parts.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("shape", [(13,), (1, 997), (31, 3, 5)])
def test_sum_of_everything(shape):
    x = te.placeholder(shape, name="x")
    value = normal(*shape)
    got, _ = run(func_of(x, topi.sum(x)), value, out_shape=())
    close(got, np.asarray(value.sum(dtype="float64")), 1e-5)


def test_an_index_of_the_largest():
    x = te.placeholder((3, 37), name="x")
    value = normal(3, 37)
    largest = topi.argmax(x, axis=1)
    got, _ = run(func_of(x, largest), value, out_shape=(3,), dtype=str(largest.dtype))
    assert (got == value.argmax(axis=1)).all()


@pytest.mark.parametrize(
    "conv",
    [
        Conv2d(1, 7, 5, 3, 11, 3, 3, (2, 2), (1, 1, 1, 1), (1, 1), 1, "float32"),
        Conv2d(2, 6, 6, 8, 12, 1, 1, (1, 1), (0, 0, 0, 0), (1, 1), 1, "float32"),
        Conv2d(1, 9, 8, 6, 6, 3, 3, (1, 1), (2, 2, 2, 2), (2, 2), 6, "float32"),
        Conv2d(1, 5, 5, 4, 6, 3, 3, (1, 1), (0, 1, 1, 0), (1, 1), 2, "float32"),
    ],
)
def test_convolutions_with_an_epilogue(conv):
    torch = pytest.importorskip("torch")
    variant = conv2d(conv)
    x = te.placeholder(variant.input_shape, name="x")
    w = te.placeholder(variant.weight_shape, name="w")
    func = func_of(x, w, topi.nn.relu(variant.compute(x, w)))
    image = normal(*variant.input_shape)
    weight = normal(conv.O, conv.KH, conv.KW, conv.C // conv.groups, seed=1)
    got, _ = run(func, image, variant.pack(weight), out_shape=(conv.N, conv.OH, conv.OW, conv.O))
    top, left, bottom, right = conv.pad
    padded = np.pad(image, ((0, 0), (top, bottom), (left, right), (0, 0)))
    want = torch.nn.functional.conv2d(
        torch.tensor(padded.transpose(0, 3, 1, 2)), torch.tensor(weight.transpose(0, 3, 1, 2)),
        stride=conv.stride, dilation=conv.dilation, groups=conv.groups,
    ).relu()  # fmt: skip
    close(got, want.numpy().transpose(0, 2, 3, 1), 2e-5)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 300, 7), (13, 31, 17)])
def test_products(sizes):
    m, k, o = sizes
    variant = dense(Dense((), m, k, o, "float32"))
    x = te.placeholder(variant.input_shape, name="x")
    w = te.placeholder(variant.weight_shape, name="w")
    rows, weight = normal(m, k), normal(k, o, seed=1)
    got, _ = run(func_of(x, w, variant.compute(x, w)), rows, weight, out_shape=(m, o))
    close(got, rows @ weight, 2e-5)


def test_a_kernel_beyond_the_devices_limits_is_refused_before_the_compiler():
    x = te.placeholder((4, 4096), name="x")
    sch = Schedule(func_of(x, te.compute((4, 4096), lambda i, j: x[i, j] * 2.0, name="out")))
    i, j = sch.get_loops(sch.get_sblock("out"))
    sch.bind(i, "blockIdx.x")
    sch.bind(j, "threadIdx.x")
    verdict = launches(sch.mod["main"], T4.gpu)
    assert not verdict and "4096 threads a block" in verdict.reason
    plain = Schedule(func_of(x, te.compute((4, 4096), lambda i, j: x[i, j] * 2.0, name="out")))
    assert "outside of all threads" in launches(plain.mod["main"], T4.gpu).reason


def test_integers_of_64_bits():
    x = te.placeholder((9,), "int64", name="x")
    value = np.arange(9, dtype="int64") - 4
    func = func_of(x, te.compute((9,), lambda i: tirx.max(x[i], tirx.const(0, "int64"))))
    got, _ = run(func, value, out_shape=(9,), dtype="int64")
    assert (got == np.maximum(value, 0)).all()
