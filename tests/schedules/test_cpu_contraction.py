"""Direct convolution and dense product against float64, on shapes that fill no tile."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tvmfuse.schedules.anchor import Dense
from tvmfuse.schedules.cpu.contraction import (
    Extents,
    best_tiling,
    conv2d_direct,
    dense,
    lanes_for,
    padded_columns,
    register_limit,
)

FEW = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

# (n, h, w, c, o), then what is odd about it
CONVS = {
    "1x1": ((1, 7, 7, 8, 16), {"k": 1}),
    "3x3 pad": ((1, 9, 9, 5, 16), {"pad": 1}),
    "7x7 stride": ((1, 23, 23, 3, 32), {"k": 7, "stride": 2, "pad": 3}),
    "prime width": ((1, 5, 37, 8, 32), {"pad": 1}),
    "one pixel": ((1, 1, 1, 24, 24), {"k": 1}),
    "batch 2": ((2, 6, 5, 4, 8), {"pad": 1}),
    "3 channels": ((1, 8, 8, 3, 3), {}),
    "5 channels": ((1, 6, 6, 5, 5), {"pad": 1}),
    "20 channels": ((1, 6, 6, 20, 20), {}),
    "24 channels": ((1, 6, 6, 24, 24), {"pad": 1}),
    "255 channels": ((1, 3, 3, 16, 255), {"k": 1}),
    "dilation": ((1, 11, 13, 4, 16), {"dilation": (2, 3), "pad": 2}),
    "asymmetric": ((1, 9, 8, 4, 16), {"pad": (0, 1, 2, 3), "stride": (2, 1)}),
    "flat window": ((1, 4, 19, 4, 16), {"k": (1, 7), "pad": (0, 3, 0, 3)}),
    "groups": ((1, 7, 7, 12, 24), {"groups": 3, "pad": 1}),
    "resnext": ((1, 6, 6, 32, 64), {"groups": 4, "pad": 1, "stride": 2}),
    "narrow groups": ((1, 5, 5, 8, 8), {"groups": 4, "pad": 1}),
    "multiplier 2": ((1, 6, 7, 8, 16), {"groups": 8, "pad": 1}),
    "stride past the end": ((1, 8, 8, 4, 16), {"k": 1, "stride": 3}),
}


@pytest.mark.parametrize("name", CONVS)
def test_direct_convolution(kit, name):
    sizes, extra = CONVS[name]
    case = kit.Case(conv2d_direct(kit.conv(*sizes, **extra), kit.AVX512), "residual")
    case.check_default(kit.AVX512, "cpu.contraction")


@pytest.mark.parametrize("epilogue", ["", "bias"])
@pytest.mark.parametrize("name", ["3x3 pad", "5 channels", "prime width", "groups"])
def test_direct_convolution_with_small_vectors(kit, name, epilogue):
    sizes, extra = CONVS[name]
    case = kit.Case(conv2d_direct(kit.conv(*sizes, **extra), kit.AVX2), epilogue)
    case.check_default(kit.AVX2, "cpu.contraction")


DENSES = [
    Dense((), 1, 20, 24, "float32"),
    Dense((), 1, 1, 1, "float32"),
    Dense((), 37, 13, 10, "float32"),
    Dense((), 5, 7, 255, "float32"),
    Dense((2, 3), 4, 8, 16, "float32"),
    Dense((2,), 31, 5, 48, "float32"),
]


@pytest.mark.parametrize("epilogue", ["", "bias", "residual"])
@pytest.mark.parametrize("product", DENSES, ids=str)
def test_dense(kit, product, epilogue):
    kit.Case(dense(product, kit.AVX512), epilogue).check_default(kit.AVX512, "cpu.contraction")


@FEW
@given(
    n=st.integers(1, 2),
    size=st.tuples(st.integers(3, 13), st.integers(3, 40)),
    channels=st.sampled_from([(1, 8), (3, 16), (5, 5), (16, 20), (7, 64)]),
    k=st.sampled_from([1, 3, (3, 1)]),
    stride=st.integers(1, 3),
    pad=st.tuples(*[st.integers(0, 2)] * 4),
    epilogue=st.sampled_from(["", "bias", "residual"]),
)
def test_any_convolution(kit, n, size, channels, k, stride, pad, epilogue):
    conv = kit.conv(n, *size, *channels, k=k, stride=stride, pad=pad)
    case = kit.Case(conv2d_direct(conv, kit.AVX512), epilogue)
    case.check_default(kit.AVX512, "cpu.contraction")


@FEW
@given(
    lead=st.sampled_from([(), (1,), (3,), (2, 2)]),
    m=st.integers(1, 40),
    k=st.integers(1, 33),
    o=st.integers(1, 70),
    epilogue=st.sampled_from(["", "bias", "residual"]),
)
def test_any_dense(kit, lead, m, k, o, epilogue):
    case = kit.Case(dense(Dense(lead, m, k, o, "float32"), kit.AVX512), epilogue)
    case.check_default(kit.AVX512, "cpu.contraction")


def test_space_of_convolution(kit):
    conv = kit.conv(1, 4, 6, 3, 64, pad=1)
    case = kit.Case(conv2d_direct(conv, kit.AVX2), "bias")
    found = kit.check_space(case, kit.AVX2, at_least=4)
    assert all(kit.categoricals(schedule) for schedule in found)


def test_space_of_dense_row(kit):
    case = kit.Case(dense(Dense((), 6, 5, 32, "float32"), kit.AVX2), "residual")
    kit.check_space(case, kit.AVX2, at_least=4)


def test_default_decisions_stand_in_the_trace(kit):
    func = kit.kernel(conv2d_direct(kit.conv(1, 6, 6, 4, 32), kit.AVX512))
    schedule, _ = kit.schedule_by_template(func, kit.AVX512)
    again, _ = kit.schedule_by_template(func, kit.AVX512)
    assert kit.categoricals(schedule)
    assert all(decision is not None for _, decision in kit.categoricals(schedule))
    kit.tvm.ir.assert_structural_equal(schedule.mod, again.mod)
    replayed = kit.Schedule(kit.tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    schedule.trace.apply_to_schedule(replayed, remove_postproc=False)
    kit.tvm.ir.assert_structural_equal(schedule.mod, replayed.mod)


def test_scheduling_leaves_the_kernel_alone(kit):
    func = kit.kernel(conv2d_direct(kit.conv(1, 6, 6, 4, 32, pad=1), kit.AVX512), "bias")
    before = func.script()
    kit.schedule_by_template(func, kit.AVX512)
    kit.space(func, kit.AVX512)
    assert func.script() == before


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("width", [1, 7, 13, 14, 15, 28, 37, 56, 97, 112])
def test_padded_columns(kit, registers, width):
    hardware = kit.machine(64, registers)
    padded = padded_columns(width, hardware)
    assert width <= padded <= 1.5 * width
    tiles = [t for t in range(1, register_limit(hardware, 2) + 1) if padded % t == 0]
    assert max(tiles) >= min(width, register_limit(hardware, 2) // 3)


def test_lanes(kit):
    wanted = {1: 1, 3: 1, 4: 4, 5: 1, 8: 8, 20: 4, 24: 8, 48: 16, 64: 16, 255: 1}
    assert {c: lanes_for(c, kit.AVX512) for c in wanted} == wanted
    assert lanes_for(64, kit.AVX2) == 8


def test_tile_fits_the_registers(kit):
    for columns in (1, 7, 28, 56):
        tiling = best_tiling(Extents(14, columns, 8, 16, 576, 256), kit.AVX512)
        assert columns % tiling.tw == 0 and 14 % tiling.ri == 0
        assert tiling.tw * tiling.v + tiling.v + 2 <= kit.AVX512.vector_registers


def test_columns_on_one_cache_set_are_not_all_taken(kit):
    far = best_tiling(Extents(28, 28, 8, 16, 2048, 2048), kit.AVX512)
    assert far.tw <= 16
