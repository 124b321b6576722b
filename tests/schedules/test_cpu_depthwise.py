"""Depthwise convolution by the outer-reduction template, against float64."""

import pytest

from tvmfuse.schedules.cpu.depthwise import applicable, depthwise

CONVS = {
    "3x3": ((1, 8, 8, 16), {"pad": 1}),
    "stride 2": ((1, 9, 9, 32), {"pad": 1, "stride": 2}),
    "5x5": ((1, 7, 11, 24), {"k": 5, "pad": 2}),
    "7x7": ((1, 9, 9, 8), {"k": 7, "pad": 3}),
    "odd channels": ((1, 6, 6, 5), {"pad": 1}),
    "20 channels": ((2, 5, 5, 20), {"pad": 1}),
    "dilation": ((1, 11, 11, 16), {"dilation": 2, "pad": 2}),
    "asymmetric": ((1, 8, 7, 16), {"pad": (0, 1, 1, 2), "stride": (1, 2)}),
    "no padding": ((1, 5, 13, 16), {}),
    "one pixel": ((1, 3, 3, 16), {}),
}


def variant_of(kit, name, hardware=None):
    (n, h, w, c), extra = CONVS[name]
    return depthwise(kit.conv(n, h, w, c, c, groups=c, **extra), hardware or kit.AVX512)


@pytest.mark.parametrize("hardware", ["AVX2", "AVX512"])
@pytest.mark.parametrize("name", CONVS)
def test_depthwise(kit, name, hardware):
    machine = getattr(kit, hardware)
    case = kit.Case(variant_of(kit, name), "residual")
    case.check_default(machine, "cpu.outer_reduction", vector="odd" not in name)


@pytest.mark.parametrize("name", ["3x3", "odd channels"])
def test_depthwise_alone(kit, name):
    case = kit.Case(variant_of(kit, name))
    case.check_default(kit.AVX512, "cpu.outer_reduction", vector="odd" not in name)


@pytest.mark.parametrize("name", ["3x3", "5x5"])
def test_space(kit, name):
    found = kit.check_space(kit.Case(variant_of(kit, name), "bias"), kit.AVX2)
    assert all(kit.categoricals(schedule) for schedule in found)


def test_applicable(kit):
    assert applicable(kit.conv(1, 6, 6, 16, 16, groups=16))
    assert not applicable(kit.conv(1, 6, 6, 16, 32, groups=16))  # multiplier 2
    assert not applicable(kit.conv(1, 6, 6, 16, 16, groups=8))
    assert not applicable(kit.conv(1, 6, 6, 1, 1, groups=1))
