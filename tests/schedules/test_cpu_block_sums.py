"""Long sums of products are taken in blocks: how long these are, and what that is worth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmfuse.schedules import base, schedule_by_template
from tvmfuse.schedules.anchor import Dense
from tvmfuse.schedules.cpu.block_sums import LONGEST, block_length, in_blocks
from tvmfuse.schedules.cpu.contraction import conv2d_direct, dense


@pytest.mark.parametrize(
    ("extents", "length"),
    [
        ((64,), 64),  # short sums stay whole
        ((256,), 256),
        ((1024,), 128),
        ((3, 3, 512), 128),
        ((3, 3, 64), 64),  # whole channels, and a column of the window would be too long
        ((3, 3, 32), 96),
        ((3, 3, 56), 168),  # channels alone would be too short
        ((3, 3, 48), 144),
        ((5, 5, 7), 175),
        ((1009,), 1009),  # a prime number has no blocks
        ((7, 7, 11), 77),
    ],
)
def test_block_length(extents, length):
    assert block_length(extents) == length


@given(st.lists(st.integers(1, 600), min_size=1, max_size=3))
def test_a_block_is_a_factor_of_the_whole(extents):
    total, length = math.prod(extents), block_length(tuple(extents))
    assert total % length == 0
    assert length == total or length <= 2 * LONGEST


CASES = {
    "1x1": ((1, 5, 7, 1024, 24), {"k": 1}),
    "window and channels": ((1, 4, 5, 320, 16), {"pad": 1}),
    "block of columns": ((1, 6, 7, 40, 24), {"pad": 1, "stride": 2}),
    "long blocks": ((1, 4, 4, 56, 16), {"pad": 1}),
    "groups": ((1, 4, 4, 512, 16), {"groups": 2, "pad": 1}),
    "prime": ((1, 3, 3, 523, 8), {"k": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_convolutions_are_right(kit, name):
    sizes, extra = CASES[name]
    variant = conv2d_direct(kit.conv(*sizes, **extra), kit.AVX2)
    case = kit.Case(variant, "residual")
    case.check_default(kit.AVX2, "cpu.contraction")


@pytest.mark.parametrize("k", [264, 1000, 1009, 3 * 128, 4096])
def test_products_are_right(kit, k):
    case = kit.Case(dense(Dense((), 5, k, 24, "float32"), kit.AVX2), "bias")
    case.check_default(kit.AVX2, "cpu.contraction")


def test_blocks_keep_digits(kit):
    """All terms alike: the worst case of a serial sum."""
    variant = dense(Dense((), 4, 4096, 16, "float32"), kit.AVX2)
    x = np.full((4, 4096), 0.7, "float32")
    w = variant.pack(np.full((4096, 16), 0.1, "float32"))
    schedule, _ = schedule_by_template(variant.prim_func(), kit.AVX2)
    got = kit.run(schedule.mod["main"], [x, w], (4, 16))
    exact = 4096 * float(np.float32(0.7)) * float(np.float32(0.1))
    total = np.float32(0)
    for _ in range(4096):
        total += np.float32(0.7) * np.float32(0.1)
    assert np.abs(got / exact - 1).max() < 0.1 * abs(total / exact - 1)


def test_the_anchor_keeps_one_reduced_axis(kit):
    variant = conv2d_direct(kit.conv(1, 4, 4, 512, 16, pad=1), kit.AVX2)
    sch = base.new_schedule(variant.prim_func())
    anchor = base.find_family(base.blocks(sch), "contraction")
    partial = in_blocks(sch, anchor)
    assert base.read_block(sch, anchor.rv).reduction == (36,)
    assert math.prod(base.read_block(sch, partial).reduction) == 128
