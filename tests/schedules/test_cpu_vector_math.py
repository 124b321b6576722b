"""exp, sums across lanes and transposes, as vector arithmetic."""

import numpy as np
import pytest

from tvmfuse.schedules.cpu.text import Writer, i64
from tvmfuse.schedules.cpu.vector_math import (
    LOWEST,
    write_across,
    write_exp,
    write_transpose,
)

LANES = 16


def kernel(rows, out, write):
    """``(x[rows, 16], y[out])`` with the buffers that the writers use."""
    w = Writer()
    with w.kernel([("x", (rows, LANES), "float32"), ("y", out, "float32")]):
        for name in ("e_x", "e_n", "e_p", "tx", "h"):
            w.bind(name, f'T.sblock_alloc_buffer(({i64(LANES)},), scope="local")')
        w.bind("tr", f'T.sblock_alloc_buffer(({i64(LANES)}, {i64(LANES)}), scope="local")')
        write(w)
    return w.function()


def test_exp_is_right_to_two_units_in_the_last_place(kit):
    rows = 4096
    x = np.linspace(LOWEST, 0, rows * LANES, dtype="float32").reshape(rows, LANES)

    def write(w):
        with w.loops(("r", rows, "serial")):
            write_exp(w, "y[r, n]", "x[r, n]", LANES)

    got = kit.run(kernel(rows, (rows, LANES), write), [x], x.shape)
    want = np.exp(x.astype("float64"))
    assert np.abs(got - want).max() > 0
    assert (np.abs(got - want) / np.spacing(want.astype("float32"))).max() <= 2


def test_exp_at_its_ends(kit):
    x = np.zeros((1, LANES), "float32")
    x[0, :5] = np.nan, -np.inf, LOWEST - 1, -1e30, -0.0
    got = kit.run(
        kernel(1, (1, LANES), lambda w: write_exp(w, "y[0, n]", "x[0, n]", LANES)), [x], x.shape
    )
    assert np.isnan(got[0, 0])
    assert got[0, 1:].tolist() == [0, 0, 0, *[1.0] * 12]


@pytest.mark.parametrize(("op", "whole"), [("{} + {}", np.sum), ("T.max({}, {})", np.max)])
def test_across_lanes(kit, op, whole):
    x = np.random.default_rng(0).standard_normal((1, LANES)).astype("float32")

    def write(w):
        with w.loops(("n", LANES, "vectorized")):
            w.line("h[n] = x[0, n]")
        write_across(w, op, "h", "y[0]", LANES)

    got = kit.run(kernel(1, (1,), write), [x], (1,))
    kit.assert_close(got, np.atleast_1d(whole(x.astype("float64"))), 1e-6)


def test_transpose(kit):
    x = np.arange(LANES * LANES, dtype="float32").reshape(LANES, LANES)

    def copy(w, line):
        for i in range(LANES):
            with w.loops(("n", LANES, "vectorized")):
                w.line(line.format(i=i64(i)))

    def write(w):
        copy(w, "tr[{i}, n] = x[{i}, n]")
        write_transpose(w, "tr", LANES)
        copy(w, "y[{i}, n] = tr[{i}, n]")

    got = kit.run(kernel(LANES, (LANES, LANES), write), [x], x.shape)
    assert np.array_equal(got, x.T)
