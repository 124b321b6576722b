"""Sums are taken in blocks where the bound of a plain one is too large, and only there."""

import pytest

from tvmfuse.precision.accumulation import (
    MAX_BOUND,
    block_extents,
    even_split,
    needs_blocks,
    plain_bound,
    split,
)


def test_bound_grows_with_the_terms_and_the_roundoff():
    assert plain_bound(1, "float32") == 2.0**-24
    assert plain_bound(1 << 20, "float32") > plain_bound(1 << 10, "float32")
    assert plain_bound(4096, "bfloat16") > plain_bound(4096, "float16") > MAX_BOUND


@pytest.mark.parametrize(("count", "blocks"), [(64, False), (2048, False), (1 << 20, True)])
def test_long_sums_need_blocks(count, blocks):
    assert needs_blocks(count, "float32") is blocks


def test_blocks_split_off_the_innermost_axis():
    assert block_extents((64, 4096), "float32") == ((64,), (4096,))
    assert block_extents((64, 4096), "float64") == ((), (64, 4096))
    assert block_extents((1 << 20,), "float32") == ((), (1 << 20,))  # no axis to sum along


@pytest.mark.parametrize(
    ("count", "blocks"), [(1, (1, 1)), (512, (1, 512)), (513, (3, 256)), (1 << 20, (4096, 256))]
)
def test_compensated_sums_are_split_into_short_blocks(count, blocks):
    assert split(count) == blocks


@pytest.mark.parametrize(
    ("count", "blocks"), [(1024, (32, 32)), (1000, (40, 25)), (1009, (1, 1009)), (6, (3, 2))]
)
def test_even_split(count, blocks):
    assert even_split(count) == blocks


def test_one_accumulator_needs_blocks_sooner():
    assert needs_blocks(200, "float32", lanes=1) and not needs_blocks(200, "float32")
