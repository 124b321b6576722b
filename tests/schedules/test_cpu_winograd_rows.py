"""Winograd by rows of tiles: right on awkward shapes, and NaN stays in its own windows."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tvmfuse.schedules import base
from tvmfuse.schedules.cpu.winograd_rows import winograd_rows

SHAPES = {
    "even": (1, 8, 8, 8, 8),
    "tails": (1, 7, 9, 8, 16),
    "prime": (1, 13, 11, 16, 8),
    "batch 2": (2, 5, 6, 8, 24),
    "smaller than a tile": (1, 1, 3, 8, 8),
    "wide": (1, 3, 129, 8, 8),
}


@pytest.mark.parametrize("epilogue", ["", "bias", "residual"])
@pytest.mark.parametrize("name", SHAPES)
def test_rows(kit, name, epilogue):
    variant = winograd_rows(kit.conv(*SHAPES[name], pad=1), kit.AVX2)
    kit.Case(variant, epilogue).check_default(kit.AVX2, "cpu.winograd_rows")


def test_rows_with_wide_vectors(kit):
    variant = winograd_rows(kit.conv(1, 7, 7, 16, 32, pad=1), kit.AVX512)
    kit.Case(variant, "bias").check_default(kit.AVX512, "cpu.winograd_rows")


@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    size=st.tuples(st.integers(1, 2), st.integers(3, 11), st.integers(3, 11)),
    channels=st.sampled_from([(8, 8), (16, 8), (8, 40)]),
    pad=st.tuples(*[st.integers(0, 2)] * 4),
)
def test_any_rows(kit, size, channels, pad):
    variant = winograd_rows(kit.conv(*size, *channels, pad=pad), kit.AVX2)
    kit.Case(variant, "bias").check_default(kit.AVX2, "cpu.winograd_rows")


@pytest.mark.parametrize("width", [147, 149, 299])
def test_padded_rows_fill_the_register_tile(kit, width):
    """37 tiles of a row are computed as 39, thirteen at a time, not one by one."""
    variant = winograd_rows(kit.conv(1, 6, width, 16, 32, pad=1), kit.AVX512)
    schedule, _ = kit.schedule_by_template(variant.prim_func(), kit.AVX512)
    (init,) = [b for b in base.blocks(schedule) if b.name == "winograd_init"]
    *_, tiles, _vectors, _lanes = schedule.get_loops(init.rv)
    assert base.loop_extent(schedule, tiles) >= 10


def test_space(kit):
    case = kit.Case(winograd_rows(kit.conv(1, 5, 5, 8, 16, pad=1), kit.AVX2), "bias")
    found = kit.check_space(case, kit.AVX2, at_least=2)
    assert all(kit.categoricals(schedule) for schedule in found)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("epilogue", ["", "residual"])
@pytest.mark.parametrize("width", [9, 149])  # the second has rows that are padded
def test_what_is_not_finite_stays_in_its_windows(kit, value, epilogue, width):
    """Every result without that pixel in its window is what it is without it."""
    conv = kit.conv(2, 10, width, 8, 16, pad=1)
    case = kit.Case(winograd_rows(conv, kit.AVX2), epilogue)
    scheduled = case.check_default(kit.AVX2, "cpu.winograd_rows").mod["main"]
    clean = kit.run(scheduled, case.inputs, case.want.shape)
    x = case.inputs[0].copy()
    x[1, 4, 8, 3] = value
    got = kit.run(scheduled, [x, *case.inputs[1:]], case.want.shape)
    inside = np.zeros(case.want.shape, bool)
    inside[1, 3:6, 7:10] = True
    rounding = case.variant.rtol * np.abs(clean).max()  # others of its tile are sums by themselves
    np.testing.assert_allclose(got[~inside], clean[~inside], rtol=0, atol=rounding)
    untouched = np.isfinite(got[inside])
    if epilogue:  # max(-inf, 0) is finite again
        assert not untouched.all()
    else:
        assert not untouched.any()


def test_overflow_of_the_transforms_is_none_of_the_definition(kit):
    """Sums of a tile's pixels overflow where no window does."""
    conv = kit.conv(1, 8, 8, 8, 8, pad=1)
    variant = winograd_rows(conv, kit.AVX2)
    schedule, _ = kit.schedule_by_template(variant.prim_func(), kit.AVX2)
    x = np.full((1, 8, 8, 8), 2e38, "float32")
    w = np.zeros((8, 3, 3, 8), "float32")
    w[:, 1, 1, 0] = 1
    got = kit.run(schedule.mod["main"], [x, variant.pack(w)], (1, 8, 8, 8))
    np.testing.assert_array_equal(got, x)
