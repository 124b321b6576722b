"""Products of two activations against float64, in every form and with epilogues."""

import numpy as np
import pytest
from tvm import te, tirx

from tvmfuse.schedules import schedule_by_template, space
from tvmfuse.schedules.anchor import BatchMatmul, View, from_text, to_text
from tvmfuse.schedules.cpu.batch_matmul import batch_matmul_variants


def product(b, m, k, o, transposed=False, dtype="float32", shared=False):
    """``x[b, m, k] @ y``, y stored as [b, k, o], [b, o, k], or without its batch."""
    stride = 0 if shared else k * o
    y = View(1, 0, (stride,), 1, k) if transposed else View(1, 0, (stride,), o, 1)
    stored = (o, k) if transposed else (k, o)
    shapes = (b, m, k), stored if shared else (b, *stored)
    x = View(0, 0, (m * k,), k, 1)
    return BatchMatmul((b,), m, k, o, x, y, tuple((s, dtype) for s in shapes), dtype)


def case(a, seed=0):
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_normal(s).astype(d) for s, d in a.buffers)
    turned = y.swapaxes(-1, -2) if a.y.row == 1 and a.y.column != 1 else y
    return [x, y], x.astype("float64") @ turned.astype("float64")


SHAPES = [(1, 1, 1, 1), (2, 7, 5, 17), (3, 1, 64, 50), (2, 49, 32, 49), (1, 37, 20, 24),
          (3, 2, 33, 64), (1, 130, 3, 5), (2, 3, 264, 10)]  # fmt: skip


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_awkward_shapes(kit, shape, transposed):
    a = product(*shape, transposed)
    assert from_text(to_text(a)) == a
    inputs, want = case(a)
    templates = set()
    for variant in batch_matmul_variants(a, kit.AVX512):
        schedule, name = schedule_by_template(variant.prim_func(), kit.AVX512)
        templates.add(name)
        kit.assert_not_naive(schedule, vector=name != "cpu.row_reduction")
        kit.assert_close(kit.run(schedule.mod["main"], inputs, want.shape), want, variant.rtol)
    few = transposed and shape[1] < 8 and shape[2] % 4 == 0
    dot = "cpu.dot" if shape[2] > 256 else "cpu.row_reduction"
    assert templates == {"cpu.batch_matmul"} | ({dot} if few else set())


def test_a_shared_operand_with_small_vectors(kit):
    a = product(3, 9, 12, 20, shared=True)
    inputs, want = case(a)
    for variant in batch_matmul_variants(a, kit.AVX2):
        schedule, _ = schedule_by_template(variant.prim_func(), kit.AVX2)
        kit.assert_close(kit.run(schedule.mod["main"], inputs, want.shape), want, 2e-5)


def test_half_types_are_summed_in_float32(kit):
    a = product(1, 4, 4096, 16, dtype="float16")
    inputs, _ = case(a)
    inputs = [np.full_like(i, 0.5) for i in inputs]  # a float16 sum would stop at 512
    want = np.full((1, 4, 16), 1024.0)
    for variant in batch_matmul_variants(a, kit.AVX512):
        schedule, _ = schedule_by_template(variant.prim_func(), kit.AVX512)
        got = kit.run(schedule.mod["main"], inputs, want.shape, "float16")
        assert np.array_equal(got, want)


def with_epilogue(a):
    """relu(product · 0.5 + mask) as grouping makes it of the packed form."""
    from tvmfuse.schedules.cpu import batch_matmul

    x, y = (te.placeholder(s, d, name=n) for (s, d), n in zip(a.buffers, "xy", strict=True))
    k = te.reduce_axis((0, a.K), "k")
    panels = te.compute((*a.lead, a.O // 16, a.K, 16), lambda b, g, i, n: y[b, i, g * 16 + n],
                        name=batch_matmul.PANELS)  # fmt: skip
    notes = {"tvmfuse.family": batch_matmul.FAMILY, "tvmfuse.lanes": 16,
             "tvmfuse.column_stride_bytes": 4 * a.K}  # fmt: skip
    shape = (*a.lead, a.M, a.O)
    z = te.compute(
        shape, lambda b, m, o: te.sum(x[b, m, k] * panels[b, o // 16, k, o % 16], axis=[k]),
        name="matmul", attrs=notes,
    )  # fmt: skip
    mask = te.placeholder((a.O,), name="mask")
    scaled = te.compute(shape, lambda *i: z(*i) * tirx.const(0.5, "float32"), name="scale")
    masked = te.compute(shape, lambda *i: scaled(*i) + mask(i[-1]), name="add")
    out = te.compute(shape, lambda *i: te.max(masked(*i), tirx.const(0, "float32")), name="relu")
    func = te.create_prim_func([x, y, mask, out], index_dtype_override="int64")
    return func.with_attr("tirx.noalias", True)


def test_epilogues_and_the_search_space(kit):
    a = product(2, 12, 10, 32)
    inputs, want = case(a)
    mask = np.random.default_rng(1).standard_normal(32).astype("float32")
    want = np.maximum(want * 0.5 + mask, 0)
    func = with_epilogue(a)
    schedules = [schedule_by_template(func, kit.AVX512)[0], *space(func, kit.AVX512)]
    assert len(schedules) > 2
    schedules.append(kit.resampled(func, schedules[1], seed=3))
    for schedule in schedules:
        assert "scale" not in [b.name for b in _blocks(schedule)]  # inlined
        got = kit.run(schedule.mod["main"], [*inputs, mask], want.shape)
        kit.assert_close(got, want, 2e-5)


def _blocks(schedule):
    from tvmfuse.schedules.base import blocks

    return blocks(schedule)


def test_a_dot_product_with_an_epilogue(kit):
    from tvmfuse.schedules.cpu.dot import dots

    x, y = te.placeholder((2, 3, 96), name="x"), te.placeholder((2, 12, 96), name="y")
    z = dots(lambda i, m, k: x(*i, m, k), lambda i, o, k: y(*i, o, k), (2, 3, 12), 96, 16)
    twice = te.compute(z.shape, lambda *i: z(*i) * tirx.const(2, "float32"), name="twice")
    out = te.compute(z.shape, lambda *i: twice(*i) + x(i[0], i[1], i[2]), name="add")
    func = te.create_prim_func([x, y, out], index_dtype_override="int64")
    func = func.with_attr("tirx.noalias", True)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype("float32") for s in ((2, 3, 96), (2, 12, 96)))
    want = 2 * (a.astype("float64") @ b.swapaxes(1, 2)) + a[..., :12]
    schedule, name = schedule_by_template(func, kit.AVX512)
    assert name == "cpu.dot"
    for tried in (schedule, kit.resampled(func, space(func, kit.AVX512)[0], seed=2)):
        kit.assert_close(kit.run(tried.mod["main"], [a, b], want.shape), want, 2e-5)
