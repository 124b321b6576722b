"""Elementary functions: right relative to themselves, and no call of a library for each element."""

import numpy as np
import pytest
import torch
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


EDGES = [0.0, -0.0, 1.0, -1.0, 88.7, 88.8, -87.4, -103.0, -104.0, -110.0, 100.0, 1e38, -1e38,
         np.inf, -np.inf, np.nan, 1e-30, -1e-30, 0.625, 0.6249, 2.0, 3.9, 4.0, 10.0]  # fmt: skip
FUNCTIONS = {
    "exp": (tirx.exp, torch.exp, (-87.0, 88.0), 2e-7),
    "sigmoid": (tirx.sigmoid, torch.sigmoid, (-80.0, 20.0), 3e-7),
    "tanh": (tirx.tanh, torch.tanh, (-12.0, 12.0), 3e-7),
    "erf": (tirx.erf, torch.erf, (-6.0, 6.0), 3e-7),
}


def computed(function, values):
    """The function of all values by the default schedule, and the machine code."""
    x = te.placeholder(values.shape, str(values.dtype), "x")
    y = te.compute(x.shape, lambda i: function(x[i]), "y")
    scheduled = default_schedule(te.create_prim_func([x, y]), HARDWARE)
    library = tvm.compile(scheduled.mod, target=tvm.target.Target(HARDWARE.target_json))
    out = tvm.runtime.tensor(np.empty_like(values))
    library["main"](tvm.runtime.tensor(values), out)
    return out.numpy(), library.mod.inspect_source("asm")


@pytest.mark.parametrize("count", [1 << 14, 9973])  # whole vectors, and none
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_arithmetic_right_over_the_whole_range(name, count):
    function, reference, (low, high), allowed = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    rest = count - len(EDGES) - 500
    values = np.concatenate(
        [EDGES, rng.uniform(low, high, rest), rng.normal(size=500) * 1e-3]
    ).astype("float32")  # fmt: skip
    got, code = computed(function, values)
    got, exact = torch.from_numpy(got), reference(torch.from_numpy(values).double())
    torch.testing.assert_close(got.isnan(), exact.isnan())
    torch.testing.assert_close(got.isinf(), exact.float().isinf())
    plain = exact.float().isfinite()
    error = (got.double() - exact)[plain].abs()
    # exp is right down to the last denormal number; 1 / (1 + exp(100)) divides by infinity.
    least = 1.5e-45 if name == "exp" else float(np.finfo("float32").tiny)
    assert bool((error <= allowed * exact[plain].abs() + least).all())
    assert f"{name}f" not in code and "expf" not in code


@pytest.mark.parametrize(("dtype", "allowed"), [("float64", 1e-15), ("float16", 1e-3)])
def test_exp_of_other_types(dtype, allowed):
    values = np.linspace(-5, 5, 64).astype(dtype)
    got, _ = computed(tirx.exp, values)
    exact = np.exp(values.astype("float64"))
    assert np.abs(got / exact - 1).max() <= allowed
