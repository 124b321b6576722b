"""Integer convolutions and products, bit by bit against NumPy's integers."""

import dataclasses

import numpy as np
import pytest
import torch

from tvmfuse.schedules import schedule_by_template, space
from tvmfuse.schedules.anchor import IntegerConv2d, IntegerDense, from_text, to_text
from tvmfuse.schedules.cpu.dot4 import has_instruction
from tvmfuse.schedules.cpu.integer import LONGEST, integer

# (n, h, w, c, o), then what is odd about it
CONVS = {
    "1x1": ((1, 7, 7, 8, 16), {"k": 1}),
    "3x3": ((1, 9, 9, 16, 32), {"pad": 1}),
    "7x7 stride": ((1, 23, 23, 3, 32), {"k": 7, "stride": 2, "pad": 3}),
    "prime width": ((1, 5, 37, 8, 32), {"pad": 1}),
    "batch 2": ((2, 6, 5, 4, 8), {"pad": 1}),
    "5 channels": ((1, 6, 6, 5, 20), {"pad": 1}),
    "24 channels": ((1, 6, 6, 24, 24), {"pad": 1}),
    "dilation": ((1, 11, 13, 4, 16), {"dilation": (2, 3), "pad": 2}),
    "asymmetric": ((1, 9, 8, 4, 16), {"pad": (0, 1, 2, 3), "stride": (2, 1)}),
    "groups": ((1, 7, 7, 24, 48), {"groups": 3, "pad": 1}),
    "depthwise": ((1, 9, 9, 24, 24), {"groups": 24, "pad": 1, "stride": 2}),
    "depthwise 5x5": ((1, 12, 12, 32, 32), {"groups": 32, "pad": 2, "k": 5}),
    "stride past the end": ((1, 8, 8, 4, 16), {"k": 1, "stride": 3}),
}
DENSES = {
    "rows": ((), 33, 64, 48),
    "one row": ((), 1, 128, 40),
    "a tail of bytes": ((2,), 5, 37, 16),
    "prime rows": ((), 67, 20, 32),
}


def _convolution(kit, sizes, zero, **extra):
    return IntegerConv2d(**{**vars(kit.conv(*sizes, **extra)), "dtype": "uint8"}, zero=zero)


def _weight_shape(anchor):
    if isinstance(anchor, IntegerDense):
        return (anchor.K, anchor.O)
    return (anchor.O, anchor.KH, anchor.KW, anchor.C // anchor.groups)


def _data(anchor, extreme):
    rng = np.random.default_rng(0)
    shape = integer(anchor, _PLAIN).input_shape
    if extreme:
        x = rng.choice(np.array([0, 255], np.uint8), shape)
        w = rng.choice(np.array([-128, 127], np.int8), _weight_shape(anchor))
        x[..., ::2], w[..., ::2] = 255, -128
        return x, w
    x = rng.integers(0, 256, shape).astype(np.uint8)
    return x, rng.integers(-128, 128, _weight_shape(anchor)).astype(np.int8)


def _definition(anchor, x, w):
    """In doubles, which hold every sum exactly."""
    wide = torch.from_numpy(x.astype(np.float64) - anchor.zero)
    w = torch.from_numpy(w.astype(np.float64))
    if isinstance(anchor, IntegerDense):
        return (wide @ w).numpy().astype(np.int32)
    top, left, bottom, right = anchor.pad
    padded = torch.nn.functional.pad(wide.permute(0, 3, 1, 2), (left, right, top, bottom))
    y = torch.nn.functional.conv2d(
        padded, w.permute(0, 3, 1, 2), None, anchor.stride, 0, anchor.dilation, anchor.groups
    )
    return y.permute(0, 2, 3, 1).numpy().astype(np.int32)


def _check(kit, anchor, machine, extreme=False, schedules=None):
    x, w = _data(anchor, extreme)
    want = _definition(anchor, x, w)
    variant = integer(anchor, machine)
    if schedules is None:
        schedules = [schedule_by_template(variant.prim_func(), machine)[0]]
    for schedule in schedules:
        got = kit.run(schedule.mod["main"], [x, variant.pack(w)], want.shape, "int32")
        np.testing.assert_array_equal(got, want)


@pytest.fixture(autouse=True)
def _machines(kit):
    global _PLAIN
    without = tuple(f for f in kit.LOCAL.features if "vnni" not in f)
    _PLAIN = kit.machine(features=without)


@pytest.mark.parametrize("zero", [0, 131])
@pytest.mark.parametrize("name", CONVS)
def test_convolution(kit, name, zero):
    sizes, extra = CONVS[name]
    _check(kit, _convolution(kit, sizes, zero, **extra), kit.AVX512)


@pytest.mark.parametrize("name", ["3x3", "5 channels", "groups", "depthwise"])
def test_largest_numbers_do_not_saturate(kit, name):
    sizes, extra = CONVS[name]
    _check(kit, _convolution(kit, sizes, 0, **extra), kit.AVX512, extreme=True)
    _check(kit, _convolution(kit, sizes, 255, **extra), _PLAIN, extreme=True)


@pytest.mark.parametrize("name", ["3x3", "5 channels", "prime width", "depthwise"])
def test_convolution_with_small_vectors(kit, name):
    sizes, extra = CONVS[name]
    _check(kit, _convolution(kit, sizes, 7, **extra), kit.AVX2)


@pytest.mark.parametrize("name", ["3x3", "5 channels", "groups"])
def test_without_the_instruction_bytes_are_widened(kit, name):
    sizes, extra = CONVS[name]
    assert not has_instruction(_PLAIN)
    _check(kit, _convolution(kit, sizes, 3, **extra), _PLAIN)


@pytest.mark.parametrize("zero", [0, 128])
@pytest.mark.parametrize("name", DENSES)
def test_product(kit, name, zero):
    lead, rows, depth, channels = DENSES[name]
    anchor = IntegerDense(lead, rows, depth, channels, "uint8", zero=zero)
    _check(kit, anchor, kit.AVX512)
    _check(kit, anchor, kit.AVX512, extreme=True)
    _check(kit, anchor, _PLAIN)


def test_every_structure_of_the_space_is_right(kit):
    anchor = _convolution(kit, (1, 9, 9, 16, 32), 9, pad=1)
    variant = integer(anchor, kit.AVX512)
    _check(kit, anchor, kit.AVX512, schedules=space(variant.prim_func(), kit.AVX512))


def test_the_longest_sum_is_in_range():
    assert LONGEST * 255 * 128 < 2**31 <= (LONGEST + 1) * 255 * 128


def test_narrow_groups_are_refused(kit):
    with pytest.raises(ValueError, match="no words"):
        integer(_convolution(kit, (1, 4, 4, 12, 24), 0, groups=2), kit.AVX512)


def test_the_template_uses_the_instruction(kit):
    if not has_instruction(kit.LOCAL):
        pytest.skip("this CPU has no AVX-512-VNNI")
    variant = integer(_convolution(kit, (1, 9, 9, 16, 32), 9, pad=1), kit.AVX512)
    schedule, template = schedule_by_template(variant.prim_func(), kit.AVX512)
    assert template == "cpu.contraction"
    assert "tvmfuse_accumulate" in schedule.mod.script()


def test_records_survive_their_text(kit):
    for anchor in (
        _convolution(kit, (1, 9, 9, 16, 32), 9, pad=1),
        IntegerDense((2,), 3, 4, 8, "uint8", 5),
    ):
        assert from_text(to_text(anchor)) == anchor
        assert type(from_text(to_text(anchor))) is type(anchor)
    assert dataclasses.fields(IntegerDense)[-1].name == "zero"
