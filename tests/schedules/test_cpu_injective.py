"""Element-wise kernels, broadcasts, transposes and concatenations; and the last template."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvmfuse.schedules import TEMPLATES
from tvmfuse.schedules.cpu.concat import concat

INT64 = {"index_dtype_override": "int64"}


def data(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype("float32") for s in shapes]


@pytest.mark.parametrize("shape", [(64,), (7, 13), (1, 5, 5, 16), (3,), (1,), (2, 3, 24)])
def test_chain_becomes_one_stage(kit, shape):
    x, r = (te.placeholder(shape, name=n) for n in "xr")
    y = te.compute(shape, lambda *i: x(*i) + r(*i), "add")
    z = te.compute(shape, lambda *i: tirx.exp(y(*i)), "exp")
    schedule, name = kit.schedule_by_template(te.create_prim_func([x, r, z], **INT64), kit.AVX512)
    assert name == "cpu.injective"
    total = int(np.prod(shape))
    if total > 1:
        kit.assert_not_naive(schedule, vector=total % 4 == 0)
    assert len(schedule.get_child_blocks(schedule.get_sblock("root"))) == 1
    a, b = data(shape, shape)
    got = kit.run(schedule.mod["main"], [a, b], shape)
    kit.assert_close(got, np.exp(a.astype("float64") + b), 2e-6)


@pytest.mark.parametrize("shape", [(5, 24), (2, 3, 7)])
def test_broadcast(kit, shape):
    x, b = te.placeholder(shape, name="x"), te.placeholder(shape[-1:], name="b")
    y = te.compute(shape, lambda *i: x(*i) * b(i[-1]), "scale")
    schedule, name = kit.schedule_by_template(te.create_prim_func([x, b, y], **INT64), kit.AVX512)
    assert name == "cpu.injective"
    kit.assert_not_naive(schedule, vector=False)
    u, v = data(shape, shape[-1:])
    assert np.array_equal(kit.run(schedule.mod["main"], [u, v], shape), u * v)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0)])
def test_transpose(kit, order):
    shape = (2, 5, 7, 16)
    out = tuple(shape[a] for a in order)
    x = te.placeholder(shape, name="x")
    y = te.compute(out, lambda *i: x(*(i[order.index(d)] for d in range(4))), "transpose")
    schedule, name = kit.schedule_by_template(te.create_prim_func([x, y], **INT64), kit.AVX512)
    assert name == "cpu.injective"
    kit.assert_not_naive(schedule, vector=False)
    (u,) = data(shape)
    assert np.array_equal(kit.run(schedule.mod["main"], [u], out), u.transpose(order))


def test_value_that_is_also_an_output_is_kept(kit):
    x = te.placeholder((4, 16), name="x")
    y = te.compute((4, 16), lambda *i: x(*i) * tirx.const(2, "float32"), "twice")
    z = te.compute((4, 16), lambda *i: y(*i) + tirx.const(1, "float32"), "more")
    schedule, _ = kit.schedule_by_template(te.create_prim_func([x, y, z], **INT64), kit.AVX512)
    module = tvm.IRModule({"main": schedule.mod["main"]})
    executable = tvm.compile(module, target=tvm.target.Target(kit.LOCAL.target_json))
    (u,) = data((4, 16))
    outs = [tvm.runtime.tensor(np.zeros((4, 16), "float32")) for _ in range(2)]
    executable["main"](tvm.runtime.tensor(u), *outs)
    assert np.array_equal(outs[0].numpy(), u * 2)
    assert np.array_equal(outs[1].numpy(), u * 2 + 1)


CONCATS = [
    ([(1, 4, 4, 8), (1, 4, 4, 16)], 3),
    ([(1, 4, 4, 8), (1, 4, 4, 5), (1, 4, 4, 3)], 3),
    ([(2, 3, 7), (2, 5, 7)], 1),
    ([(3, 16), (1, 16)], 0),
    ([(5,), (8,)], 0),
]


@pytest.mark.parametrize("shapes, axis", CONCATS)
def test_concat(kit, shapes, axis):
    func = concat(shapes, axis, "float32")
    schedule, name = kit.schedule_by_template(func, kit.AVX512)
    assert name == "cpu.injective"
    kit.assert_not_naive(schedule, vector=False)
    parts = data(*shapes)
    want = np.concatenate(parts, axis)
    assert np.array_equal(kit.run(schedule.mod["main"], parts, want.shape), want)


def test_concat_of_integers(kit):
    schedule, _ = kit.schedule_by_template(concat([(2, 8), (2, 4)], 1, "int64"), kit.AVX512)
    parts = [np.arange(16).reshape(2, 8), np.arange(8).reshape(2, 4)]
    got = kit.run(schedule.mod["main"], parts, (2, 12), "int64")
    assert np.array_equal(got, np.concatenate(parts, 1))


def cumulative(rows, n):
    """Running sums along rows, right only in order."""
    text = f"""
@T.prim_func(private=True, s_tir=True)
def main(x: T.Buffer(({rows}, {n}), "float32"), y: T.Buffer(({rows}, {n}), "float32")):
    for i, j in T.grid({rows}, {n}):
        with T.sblock("scan"):
            vi = T.axis.spatial({rows}, i)
            vj = T.axis.opaque({n}, j)
            T.reads(x[vi, vj], y[vi, 0:{n}])
            T.writes(y[vi, 0:{n}])
            y[vi, vj] = x[vi, vj] + T.if_then_else(vj > 0, y[vi, vj - 1], T.float32(0))
"""
    return tvm.script.from_source(text)


def test_scan_gets_the_fallback_and_stays_in_order(kit):
    schedule, name = kit.schedule_by_template(cumulative(4, 33), kit.AVX512)
    assert name == "cpu.fallback"
    (u,) = data((4, 33))
    got = kit.run(schedule.mod["main"], [u], (4, 33))
    kit.assert_close(got, u.astype("float64").cumsum(1), 2e-6)


def test_two_reductions_on_different_rows_get_the_fallback(kit):
    x = te.placeholder((6, 8, 16), name="x")
    a, b = te.reduce_axis((0, 16), "a"), te.reduce_axis((0, 8), "b")
    y = te.compute((6, 8), lambda i, j: te.sum(x[i, j, a], axis=a), "rows")
    z = te.compute((6,), lambda i: te.sum(y[i, b], axis=b), "total")
    schedule, name = kit.schedule_by_template(te.create_prim_func([x, z], **INT64), kit.AVX512)
    assert name == "cpu.fallback"
    kit.assert_not_naive(schedule, vector=False)
    (u,) = data((6, 8, 16))
    got = kit.run(schedule.mod["main"], [u], (6,))
    kit.assert_close(got, u.astype("float64").sum((1, 2)), 2e-6)


def test_last_template_takes_everything(kit):
    x = te.placeholder((4, 16), name="x")
    y = te.compute((4, 16), lambda *i: tirx.exp(x(*i)), "exp")
    func = te.create_prim_func([x, y], **INT64)
    (schedule,) = TEMPLATES["llvm"][-1].apply(func, kit.AVX512, True)
    kit.assert_not_naive(schedule)
    (u,) = data((4, 16))
    kit.assert_close(kit.run(schedule.mod["main"], [u], (4, 16)), np.exp(u), 2e-6)
