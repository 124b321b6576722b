"""Winograd convolution against float64: tile tails, padding, batches, and where it is refused."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tvmfuse.schedules.cpu import winograd as wg

FEW = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("m", [2, 4])
def test_matrices_are_a_convolution(m):
    """Y = A^T[(G g) . (B^T d)] is the 1-d convolution, exactly to rounding."""
    rng = np.random.default_rng(0)
    d, g = rng.standard_normal(m + 2), rng.standard_normal(3)
    y = np.array(wg.AT[m]) @ ((np.array(wg.G[m]) @ g) * (np.array(wg.BT[m]) @ d))
    np.testing.assert_allclose(y, np.correlate(d, g, "valid"), rtol=0, atol=1e-12)


SHAPES = {
    "even": (1, 8, 8, 8, 8),
    "tails": (1, 7, 9, 8, 16),
    "prime": (1, 13, 11, 16, 8),
    "batch 2": (2, 5, 6, 8, 24),
    "smaller than a tile": (1, 1, 3, 8, 8),
}


@pytest.mark.parametrize("epilogue", ["", "residual"])
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("name", SHAPES)
def test_winograd(kit, name, m, epilogue):
    variant = wg.winograd(kit.conv(*SHAPES[name], pad=1), m, kit.AVX2)
    kit.Case(variant, epilogue).check_default(kit.AVX2, "cpu.winograd")


@pytest.mark.parametrize("m", [2, 4])
def test_winograd_with_wide_vectors(kit, m):
    variant = wg.winograd(kit.conv(1, 7, 7, 16, 32, pad=1), m, kit.AVX512)
    kit.Case(variant, "bias").check_default(kit.AVX512, "cpu.winograd")


@FEW
@given(
    size=st.tuples(st.integers(1, 2), st.integers(3, 11), st.integers(3, 11)),
    channels=st.sampled_from([(8, 8), (16, 8), (8, 40)]),
    pad=st.tuples(*[st.integers(0, 2)] * 4),
    m=st.sampled_from([2, 4]),
)
def test_any_winograd(kit, size, channels, pad, m):
    variant = wg.winograd(kit.conv(*size, *channels, pad=pad), m, kit.AVX2)
    kit.Case(variant, "bias").check_default(kit.AVX2, "cpu.winograd")


def test_space(kit):
    case = kit.Case(wg.winograd(kit.conv(1, 5, 5, 8, 16, pad=1), 2, kit.AVX2), "bias")
    found = kit.check_space(case, kit.AVX2, at_least=4)
    assert all(kit.categoricals(schedule) for schedule in found)


def test_default_decisions_stand_in_the_trace(kit):
    func = kit.kernel(wg.winograd(kit.conv(1, 5, 5, 8, 16, pad=1), 2, kit.AVX2))
    schedule, _ = kit.schedule_by_template(func, kit.AVX2)
    assert kit.categoricals(schedule)
    assert all(decision is not None for _, decision in kit.categoricals(schedule))


REFUSED = {
    "5x5": {"k": 5},
    "stride": {"stride": 2},
    "dilation": {"dilation": 2},
    "groups": {"groups": 2},
    "float16": {"dtype": "float16"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_not_applicable(kit, name):
    assert wg.applicable(kit.conv(1, 9, 9, 16, 16, pad=1), kit.AVX2)
    assert not wg.applicable(kit.conv(1, 9, 9, 16, 16, pad=1, **REFUSED[name]), kit.AVX2)


@pytest.mark.parametrize("channels", [(3, 16), (16, 20)])
def test_needs_whole_vectors(kit, channels):
    assert not wg.applicable(kit.conv(1, 9, 9, *channels, pad=1), kit.AVX2)
