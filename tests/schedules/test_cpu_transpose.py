"""Tiled transposes: right on awkward shapes, and left to others where they gain nothing."""

import numpy as np
import pytest
from tvm import te

from tvmfuse.schedules.cpu.transpose import TransposeTemplate


def transposed(shape, axes, residual=False):
    x = te.placeholder(shape, "float32", "x")
    out = [shape[a] for a in axes]
    r = te.placeholder(out, "float32", "r")

    def read(*i):
        return x(*(i[axes.index(k)] for k in range(len(shape))))

    y = te.compute(out, read, "T_transpose")
    if residual:
        y = te.compute(out, lambda *i: y(*i) + r(*i), "T_add")
    parameters = [x, r, y] if residual else [x, y]
    return te.create_prim_func(parameters, index_dtype_override="int64")


TAKEN = {
    "image to channels last": ((1, 64, 24, 24), (0, 2, 3, 1)),
    "channels last to image": ((1, 24, 48, 32), (0, 3, 1, 2)),
    "batch": ((2, 40, 16, 56), (0, 2, 3, 1)),
    "matrix": ((1000, 72), (1, 0)),
    "last two of four": ((3, 5, 64, 104), (0, 1, 3, 2)),
}


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("name", TAKEN)
def test_a_tile_at_a_time(kit, name, residual):
    shape, axes = TAKEN[name]
    func = transposed(shape, axes, residual)
    schedule, template = kit.schedule_by_template(func, kit.AVX512)
    assert template == "cpu.transpose"
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype("float32")
    want = x.transpose(axes)
    inputs = [x]
    if residual:
        inputs.append(rng.standard_normal(want.shape).astype("float32"))
        want = want + inputs[1]
    np.testing.assert_array_equal(kit.run(schedule.mod["main"], inputs, want.shape), want)


LEFT = {
    "same innermost axis": ((1, 197, 12, 64), (0, 2, 1, 3)),
    "three channels": ((1, 3, 224, 224), (0, 2, 3, 1)),
    "prime": ((1, 64, 31, 37), (0, 2, 3, 1)),
    "fits the first level": ((1, 16, 16, 16), (0, 2, 3, 1)),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_to_others(kit, name):
    func = transposed(*LEFT[name])
    assert TransposeTemplate().apply(func, kit.AVX512, False) is None
    assert kit.schedule_by_template(func, kit.AVX512)[1] == "cpu.injective"


def test_operands_without_axes_are_no_rows(kit):
    s, r = te.placeholder((), "float32", "s"), te.placeholder((16, 4096), "float32", "r")
    y = te.compute((4096, 16), lambda i, j: r[j, i] * s(), "T_scale")
    func = te.create_prim_func([s, r, y], index_dtype_override="int64")
    assert kit.schedule_by_template(func, kit.AVX512)[1] == "cpu.transpose"
