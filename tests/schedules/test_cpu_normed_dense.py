"""A dense product with a norm of its rows as one kernel: right on awkward shapes, cut in strips."""

import numpy as np
import pytest
from tvm import te, tirx

from tvmfuse.hardware import resolve_target
from tvmfuse.schedules.anchor import Dense
from tvmfuse.schedules.base import blocks, new_schedule
from tvmfuse.schedules.cpu.contraction import ContractionTemplate, dense, extents_of
from tvmfuse.schedules.cpu.normed_dense import (
    NormedDenseTemplate,
    best_strip,
    dense_extents,
    is_row_norm,
    lost_share,
    strip_bytes,
)

EPSILON = 1e-5
# One row, a prime number of rows, whole tiles and tails, several leading axes, a sum in blocks.
SHAPES = [
    ((), 1, 8, 16), ((), 7, 13, 24), ((), 131, 24, 100), ((2,), 13, 300, 64), ((3, 2), 5, 16, 32),
    ((8,), 26, 8, 16), ((), 518, 16, 64), ((), 128, 256, 48), ((1,), 29, 17, 8),
]  # fmt: skip


def row_norm(x, gamma, beta, count=None):
    """Layer norm of the rows as the passes write it: shifted by the row's first element."""
    *rows, n = x.shape
    factor = tirx.const(1.0 / int(n), "float32")
    k, q = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "q")
    total = te.compute(rows, lambda *r: te.sum(x(*r, k) - x(*r, 0), axis=k), "total")

    def centred(r, i):
        return x(*r, i) - x(*r, 0) - total(*r) * factor

    spread = te.compute(rows, lambda *r: te.sum(centred(r, q) * centred(r, q), axis=q), "spread")

    def body(*at):
        *r, i = at
        scale = tirx.rsqrt(spread(*r) * factor + tirx.const(EPSILON, "float32"))
        return centred(r, i) * scale * gamma(i) + beta(i)

    return te.compute(x.shape, body, "layer_norm")


def kernel(product, hardware, between=True, behind=False):
    """``norm(x @ w + b + r)``, or ``norm(x @ w)``; then doubled where asked for."""
    variant = dense(product, hardware)
    n, shape = product.O, (*product.lead, product.M, product.O)
    given = [te.placeholder(variant.input_shape, name="x"),
             te.placeholder(variant.weight_shape, name="w")]  # fmt: skip
    y = variant.compute(*given)
    if between:
        bias, rest = te.placeholder((n,), name="b"), te.placeholder(shape, name="r")
        given += [bias, rest]
        one, y = y, None
        two = te.compute(shape, lambda *i: one(*i) + bias(i[-1]), "add")
        y = te.compute(shape, lambda *i: two(*i) + rest(*i), "add_1")
    gamma, beta = (te.placeholder((n,), name=name) for name in ("gamma", "beta"))
    y = row_norm(y, gamma, beta)
    if behind:
        normed = y
        y = te.compute(shape, lambda *i: normed(*i) * tirx.const(2.0, "float32"), "twice")
    func = te.create_prim_func([*given, gamma, beta, y], index_dtype_override="int64")
    return variant, func.with_attr("tirx.noalias", True)


def inputs(kit, product, variant, between, offset=0.0):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(variant.input_shape).astype("float32")
    w = kit.weight_of(product, rng)
    s = kit.definition(product, x, w)
    arrays = [x, variant.pack(w)]
    if between:
        bias = (rng.standard_normal(product.O) + offset).astype("float32")
        rest = rng.standard_normal(s.shape).astype("float32")
        arrays += [bias, rest]
        s = s + bias + rest
    gamma, beta = rng.standard_normal((2, product.O)).astype("float32")
    centred = s - s.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
    return [*arrays, gamma, beta], centred * scale * gamma + beta


@pytest.mark.parametrize("machine", ["AVX512", "AVX2"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_right(kit, shape, machine):
    product, hardware = Dense(*shape, "float32"), getattr(kit, machine)
    variant, func = kernel(product, hardware)
    arrays, want = inputs(kit, product, variant, True)
    schedule, name = kit.schedule_by_template(func, hardware)
    assert name == NormedDenseTemplate.name
    kit.assert_not_naive(schedule)
    got = kit.run(schedule.mod["main"], arrays, want.shape)
    kit.assert_close(got, want, 2e-5)


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("behind", [False, True])
def test_nothing_between_and_something_behind(kit, between, behind):
    product = Dense((2,), 15, 24, 40, "float32")
    variant, func = kernel(product, kit.AVX512, between, behind)
    arrays, want = inputs(kit, product, variant, between)
    schedule, name = kit.schedule_by_template(func, kit.AVX512)
    assert name == NormedDenseTemplate.name
    got = kit.run(schedule.mod["main"], arrays, want.shape)
    kit.assert_close(got, want * (2 if behind else 1), 2e-5)


def test_a_large_offset_costs_no_digits(kit):
    product = Dense((), 13, 16, 64, "float32")
    variant, func = kernel(product, kit.AVX512)
    arrays, want = inputs(kit, product, variant, True, offset=80000.0)
    schedule, _ = kit.schedule_by_template(func, kit.AVX512)
    got = kit.run(schedule.mod["main"], arrays, want.shape)
    kit.assert_close(got, want, 2e-2)  # the sum itself keeps a hundredth near 80000


def test_every_tunable_schedule_is_right(kit):
    product = Dense((2,), 24, 16, 96, "float32")
    variant, func = kernel(product, kit.AVX512)
    arrays, want = inputs(kit, product, variant, True)
    found = kit.space(func, kit.AVX512)
    assert len(found) == 4  # 1, 2, 3 and 6 vectors in a tile
    for number, schedule in enumerate(found):
        again = kit.resampled(func, schedule, seed=number + 1)
        assert kit.categoricals(again)
        for one in (schedule, again):
            kit.assert_close(kit.run(one.mod["main"], arrays, want.shape), want, 2e-5)


def test_the_sums_run_in_vectors(kit):
    _, func = kernel(Dense((), 13, 16, 64, "float32"), kit.AVX512)
    schedule, _ = kit.schedule_by_template(func, kit.AVX512)
    for name in ("total_rf_update", "spread_rf_update"):
        loops = schedule.get_loops(schedule.get_sblock(name))
        assert int(schedule.get(loops[-1]).kind) == tirx.ForKind.VECTORIZED


def test_others_are_left_alone(kit):
    """A product without a norm, and a norm without a product, have templates of their own."""
    alone = kit.kernel(dense(Dense((), 8, 16, 16, "float32"), kit.AVX512), "bias")
    x, g, b = (te.placeholder(s, name=n) for s, n in (((4, 16), "x"), ((16,), "g"), ((16,), "b")))
    norm = te.create_prim_func([x, g, b, row_norm(x, g, b)])
    for func in (alone, norm):
        assert NormedDenseTemplate().apply(func, kit.AVX512, False) is None
    assert ContractionTemplate().apply(alone, kit.AVX512, False)
    assert is_row_norm(norm) and not is_row_norm(alone)


def test_the_record_tells_the_extents(kit):
    for lead, m, k, n in SHAPES:
        product = Dense(lead, m, k, n, "float32")
        _, func = kernel(product, kit.AVX512)
        found = blocks(new_schedule(func))
        anchor = next(b for b in found if b.family)
        assert dense_extents(product, kit.AVX512) == extents_of(anchor)


def test_whole_rows_cost_where_there_are_few_of_them():
    """One core has all rows for itself; two cannot share seven rows in tiles of seven."""
    one, two = (resolve_target("llvm", cores) for cores in (1, 2))
    few, many = Dense((), 7, 768, 768, "float32"), Dense((), 128, 768, 768, "float32")
    assert lost_share(dense_extents(few, one), one) == 0.0
    assert lost_share(dense_extents(few, two), two) > 0.3
    for hardware in (one, two):
        extents = dense_extents(many, hardware)
        assert lost_share(extents, hardware) == 0.0
        assert strip_bytes(best_strip(extents, hardware), extents) <= hardware.l2_bytes // 2
