"""Pooling and means over space; softmax, layer norm and means along rows; against NumPy."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

INT64 = {"index_dtype_override": "int64"}


def pool(shape, size, stride, kind):
    """Max or mean over ``size`` x ``size`` windows of an NHWC image."""
    n, h, w, c = shape
    x = te.placeholder(shape, name="x")
    kh, kw = te.reduce_axis((0, size), "kh"), te.reduce_axis((0, size), "kw")
    fold = te.max if kind == "max" else te.sum
    y = te.compute(
        (n, (h - size) // stride + 1, (w - size) // stride + 1, c),
        lambda n, i, j, c: fold(x[n, i * stride + kh, j * stride + kw, c], axis=[kh, kw]),
        "pool",
    )
    if kind == "mean":
        y = te.compute(y.shape, lambda *i: y(*i) / tirx.const(size * size, "float32"), "scaled")
    return te.create_prim_func([x, y], **INT64)


def pool_reference(x, size, stride, kind):
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))
    windows = windows[:, ::stride, ::stride]
    return windows.max((-1, -2)) if kind == "max" else windows.mean((-1, -2))


def schedule_and_run(kit, func, inputs, shape, template, hardware, vector=True):
    schedule, name = kit.schedule_by_template(func, hardware)
    assert name == template
    kit.assert_not_naive(schedule, vector)
    return kit.run(schedule.mod["main"], inputs, shape)


@pytest.mark.parametrize("kind", ["max", "mean"])
@pytest.mark.parametrize(
    "shape, size, stride",
    [((1, 9, 9, 16), 3, 2), ((2, 7, 8, 24), 2, 2), ((1, 5, 11, 3), 3, 1), ((1, 7, 7, 64), 7, 7)],
)
def test_pooling(kit, shape, size, stride, kind):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    want = pool_reference(x.astype("float64"), size, stride, kind)
    func = pool(shape, size, stride, kind)
    vector = shape[-1] % 2 == 0
    got = schedule_and_run(
        kit, func, [x], want.shape, "cpu.outer_reduction", kit.AVX512, vector=vector
    )
    kit.assert_close(got, want, 2e-6)
    for schedule in kit.space(func, kit.AVX512):
        again = kit.resampled(func, schedule, 3)
        kit.assert_close(kit.run(again.mod["main"], [x], want.shape), want, 2e-6)


@pytest.mark.parametrize("shape", [(1, 7, 7, 24), (2, 3, 5, 16), (1, 1, 1, 8), (1, 8, 8, 5)])
def test_mean_over_space(kit, shape):
    n, h, w, c = shape
    x = te.placeholder(shape, name="x")
    kh, kw = te.reduce_axis((0, h), "kh"), te.reduce_axis((0, w), "kw")
    total = te.compute((n, 1, 1, c), lambda n, _i, _j, c: te.sum(x[n, kh, kw, c], axis=[kh, kw]))
    y = te.compute(total.shape, lambda *i: total(*i) * tirx.const(1 / (h * w), "float32"), "m")
    data = np.random.default_rng(0).standard_normal(shape).astype("float32")
    want = data.astype("float64").mean((1, 2), keepdims=True)
    func = te.create_prim_func([x, y], **INT64)
    got = schedule_and_run(
        kit, func, [data], want.shape, "cpu.outer_reduction", kit.AVX512, vector=c % 2 == 0
    )
    kit.assert_close(got, want, 2e-6)


def legalized(function, *shapes):
    """The one kernel that TVM's own legalisation and FuseTIR make of a Relax expression."""
    from tvm import relax

    builder = relax.BlockBuilder()
    args = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", args):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(function(relax.op, *args)))
        builder.emit_func_output(out)
    mod = relax.transform.LegalizeOps()(builder.finalize())
    funcs = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert len(funcs) == 1
    return funcs[0].with_attr("global_symbol", "main")


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("shape", [(1, 1000), (7, 13), (2, 3, 64), (4, 1), (1, 20)])
def test_softmax(kit, shape):
    func = legalized(lambda op, x: op.nn.softmax(x, -1), shape)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    vector = shape[-1] % 4 == 0
    got = schedule_and_run(kit, func, [x], shape, "cpu.row_reduction", kit.AVX512, vector)
    kit.assert_close(got, softmax(x.astype("float64")), 2e-6)


@pytest.mark.parametrize("shape", [(5, 48), (2, 7, 96), (1, 1, 31)])
def test_layer_norm(kit, shape):
    size = shape[-1]
    func = legalized(
        lambda op, x, g, b: op.nn.layer_norm(x, g, b, axes=[-1], epsilon=1e-5),
        shape, (size,), (size,),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) + 1).astype("float32")
    g, b = (rng.standard_normal(size).astype("float32") for _ in range(2))
    schedule, _ = kit.schedule_by_template(func, kit.AVX512)
    kit.assert_not_naive(schedule, vector=size % 4 == 0)
    wide = x.astype("float64")
    centred = wide - wide.mean(-1, keepdims=True)
    want = centred / np.sqrt(wide.var(-1, keepdims=True) + 1e-5) * g + b
    kit.assert_close(kit.run(schedule.mod["main"], [x, g, b], shape), want, 5e-6)


@pytest.mark.parametrize("shape", [(64,), (6, 64), (2, 3, 64)])
def test_partial_sums_run_in_vectors(kit, shape):
    func = legalized(lambda op, x: op.sum(x, axis=[-1]), shape)
    schedule, _ = kit.schedule_by_template(func, kit.AVX512)
    (update,) = [b for b in _names(schedule) if b.endswith("_rf_update")]
    innermost = schedule.get_loops(schedule.get_sblock(update))[-1]
    assert int(schedule.get(innermost).kind) == tirx.ForKind.VECTORIZED


def _names(schedule):
    root = schedule.get_sblock("root")
    return [str(schedule.get(b).name_hint) for b in schedule.get_child_blocks(root)]


@pytest.mark.parametrize("shape", [(6, 64), (3, 5, 7), (1, 128), (2, 3)])
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_rows(kit, shape, kind):
    func = legalized(lambda op, x: getattr(op, kind)(x, axis=[-1]), shape)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    want = getattr(x.astype("float64"), kind)(-1)
    schedule, name = kit.schedule_by_template(func, kit.AVX512)
    assert name == "cpu.row_reduction"
    assert "T.parallel(" in schedule.mod["main"].script()
    kit.assert_close(kit.run(schedule.mod["main"], [x], want.shape), want, 2e-6)


def test_reduction_to_one_number(kit):
    func = legalized(lambda op, x: op.sum(x), (5, 48))
    x = np.random.default_rng(0).standard_normal((5, 48)).astype("float32")
    schedule, _ = kit.schedule_by_template(func, kit.AVX512)
    kit.assert_close(kit.run(schedule.mod["main"], [x], ()), x.astype("float64").sum(), 2e-6)


@pytest.mark.parametrize("axes", [[0], [1], [0, 2], [1, 2]])
def test_reduction_over_any_axes(kit, axes):
    func = legalized(lambda op, x: op.mean(x, axis=axes), (6, 10, 16))
    x = np.random.default_rng(0).standard_normal((6, 10, 16)).astype("float32")
    want = x.astype("float64").mean(tuple(axes))
    schedule, _ = kit.schedule_by_template(func, kit.AVX512)
    kit.assert_not_naive(schedule, vector=False)
    kit.assert_close(kit.run(schedule.mod["main"], [x], want.shape), want, 2e-6)
