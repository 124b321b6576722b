"""tanh keeps its relative accuracy where it is small."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvmfuse.hardware import resolve_target
from tvmfuse.schedules import default_schedule

HARDWARE = resolve_target("llvm", 1)


def _tanh(x):
    return te.compute(x.shape, lambda *i: tirx.tanh(x(*i)), "tanh")


def tanh_of(values, links=1):
    """``links`` times tanh, inlined into one expression, by the default schedule."""
    x = te.placeholder(values.shape, str(values.dtype), "x")
    y = x
    for _ in range(links):
        y = _tanh(y)
    scheduled = default_schedule(te.create_prim_func([x, y]), HARDWARE)
    call = tvm.compile(scheduled.mod, target=tvm.target.Target(HARDWARE.target_json))["main"]
    out = tvm.runtime.tensor(np.empty_like(values))
    call(tvm.runtime.tensor(values), out)
    return out.numpy()


@pytest.mark.parametrize(
    ("low", "high"), [(1e-38, 1e-30), (1e-5, 1e-3), (1e-3, 0.1), (0.1, 1), (1, 20)]
)
def test_tanh_is_right_relative_to_itself(low, high):
    x = np.geomspace(low, high, 4096, dtype="float32")
    x[::2] *= -1
    exact = np.tanh(x.astype("float64"))
    assert (np.abs(tanh_of(x) - exact) / np.abs(exact)).max() < 2.5e-7


def test_tanh_of_edges():
    x = np.zeros(16, "float32")
    x[:7] = 1e-39, -1e-39, np.inf, -np.inf, np.nan, 3e38, -3e38
    got = tanh_of(x)
    assert got[:2].tolist() == x[:2].tolist()  # denormal numbers stay
    assert got[2:4].tolist() == [1, -1] and np.isnan(got[4]) and got[5:7].tolist() == [1, -1]
    assert (got[7:] == 0).all()


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 2e-14), ("float16", 1e-3)])
def test_other_types(dtype, rtol):
    x = np.geomspace(1e-4, 9, 4096, dtype=dtype)
    exact = np.tanh(x.astype("float64"))
    assert (np.abs(tanh_of(x).astype("float64") - exact) / exact).max() < rtol


def test_tanh_of_tanh():
    x = np.geomspace(1e-3, 2, 64, dtype="float32")
    want = np.tanh(np.tanh(np.tanh(x.astype("float64"))))
    assert np.abs(tanh_of(x, 3) / want - 1).max() < 1e-6
