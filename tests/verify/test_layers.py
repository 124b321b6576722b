"""Layers: the order of axes in which a kernel wrote what a node computes."""

import math

import pytest
import torch

from tvmfuse.verify.layers import _step, order_of

# Heads beside as many windows as places in one: attention's result with its heads joined. With
# samples that are all at the first place of the last two axes, channels last fits as well.
WINDOWS = (64, 3, 64, 32)


def test_order_of_joined_heads_among_equal_extents():
    value = torch.randn(WINDOWS, dtype=torch.float64)
    got = value.permute(0, 2, 1, 3).reshape(64, 64, 96).float()
    assert order_of(value, got) == (0, 2, 1, 3)


@pytest.mark.parametrize("count", [1, 2, 511, 512, 3 * 2**17, 7 * 512, math.factorial(10)])
def test_sampled_places_share_no_divisor_with_the_count(count):
    step = _step(count)
    assert math.gcd(step, count) == 1
    assert 1 <= step <= max(1, count // 512)


def test_sizes_that_differ_have_no_order():
    assert order_of(torch.zeros(2, 3), torch.zeros(5)) is None
