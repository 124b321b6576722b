"""The table of what computes in halves."""

import numpy as np

from tvmfuse.fusion.attention_call import NAME
from tvmfuse.precision.mixed import LARGEST, MOVE, POLICY, PRODUCT, beyond, policy


def test_products_and_moves_are_named_and_all_else_is_an_island():
    assert policy("nn.conv2d") == policy("matmul") == PRODUCT
    assert policy("concat") == MOVE and NAME.endswith("attention") and "attention" in POLICY
    for island in ("nn.softmax", "nn.layer_norm", "mean", "sum", "exp", "nn.gelu", "variance"):
        assert policy(island) == ""


def test_range_of_halves():
    def largest(dtype, *values):
        return beyond(np.array(values, "float32"), dtype)

    assert largest("float16", 1.0, -7e4) == 7e4 and not largest("float16", 65504.0, -1.0)
    assert largest("float16", np.inf, 7e4) == 7e4 and not largest("float16", np.inf, np.nan)
    assert not largest("bfloat16", 1e38) and largest("bfloat16", 3.4e38)
    assert LARGEST["float16"] == 65504
