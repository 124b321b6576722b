"""Products in a row as one kernel: right on awkward shapes, and no kernel of others is taken."""

import itertools

import numpy as np
import pytest
import tvm
from tvm import te, topi

from tvmfuse.hardware import resolve_target
from tvmfuse.schedules import schedule_by_template
from tvmfuse.schedules.cpu.product_chain import ProductChainTemplate

HARDWARE = resolve_target("llvm", 2)


def product(x, w, name):
    k = te.reduce_axis((0, int(w.shape[0])), "k")
    shape = (int(x.shape[0]), int(w.shape[1]))
    return te.compute(shape, lambda r, c: te.sum(x[r, k] * w[k, c], axis=k), name=name)


def chain(rows, widths, between=None):
    """Unscheduled products over ``widths``, with an operator behind each but the last."""
    x = te.placeholder((rows, widths[0]), name="x")
    weights = [
        te.placeholder(pair, name=f"w{i}") for i, pair in enumerate(itertools.pairwise(widths))
    ]
    value = x
    for i, w in enumerate(weights):
        value = product(value, w, f"dense{i}")
        if between is not None and i < len(weights) - 1:
            value = between(value)
    return te.create_prim_func([x, *weights, value]).with_attr("global_symbol", "main")


@pytest.mark.parametrize("rows", [1, 6, 13])
@pytest.mark.parametrize(
    "widths", [(16, 16, 16), (24, 8, 40, 16), (12, 20, 10), (32, 512, 32), (7, 9, 5)]
)
@pytest.mark.parametrize("between", [None, topi.nn.relu])
def test_right(rows, widths, between):
    func = chain(rows, widths, between)
    schedule, name = schedule_by_template(func, HARDWARE)
    assert name == ProductChainTemplate.name
    kernel = tvm.compile(schedule.mod, target=tvm.target.Target(HARDWARE.target_json))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([int(n) for n in p.ty.shape]).astype("float32")
              for p in func.params]  # fmt: skip
    want = arrays[0].astype("float64")
    for i, weight in enumerate(arrays[1:-1]):
        want = want @ weight
        if between is not None and i < len(arrays) - 3:
            want = np.maximum(want, 0)
    tensors = [tvm.runtime.tensor(a) for a in arrays]
    kernel["main"](*tensors)
    got = tensors[-1].numpy()
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_others_are_left_alone():
    one = chain(8, (16, 16))
    x = te.placeholder((8, 16), name="x")
    softmax = te.create_prim_func([x, topi.nn.softmax(x)]).with_attr("global_symbol", "main")
    for func in (one, softmax):
        assert ProductChainTemplate().apply(func, HARDWARE, False) is None


def test_the_row_tile_is_a_decision():
    (schedule,) = ProductChainTemplate().apply(chain(6, (16, 16, 16)), HARDWARE, True)
    assert "sample_categorical" in str(schedule.trace)
