"""What computes in which type when a float32 model is asked for in half precision: one table.

``product``
    Operands are rounded to the half type and stored in it; terms are summed in float32, and so is
    the result, until something that takes halves reads it.
``move``
    Moves values and computes none, so that rounding may as well happen in front of it.
``table``
    Rows of a constant matrix: it is stored in the half type, what is read of it is float32.

Whatever is not in the table is an island: it reads and computes float32. Softmax, norms, sums and
means lose their digits in a half (a mean of 2048 ones is 1 in float16 only if it is summed wider),
exponentials and powers leave its range (e^12 in float16), and accumulators would do both; so do
PyTorch's lists for autocast (torch/amp, "Ops that autocast to float32"). An island costs nothing:
what it reads is widened in the registers of its own kernel.
"""

from __future__ import annotations

import math

import numpy as np

WIDE = "float32"
# Largest finite number: IEEE 754 binary16; bfloat16 has the exponent of binary32.
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38}

PRODUCT, MOVE, TABLE = "product", "move", "table"
POLICY: dict[str, str] = {
    "nn.conv2d": PRODUCT,
    "matmul": PRODUCT,
    "attention": PRODUCT,
    "reshape": MOVE,
    "permute_dims": MOVE,
    "concat": MOVE,
    "split": MOVE,
    "strided_slice": MOVE,
    "broadcast_to": MOVE,
    "tile": MOVE,
    "repeat": MOVE,
    "flip": MOVE,
    "take": TABLE,
}
# Shorter sums are no work for matrix units, and are where positions meet frequencies (rotary
# embeddings), whose products are angles: bfloat16 knows 2047 only to within 8.
LEAST_DEPTH = 8


def policy(op: str) -> str:
    """Row of an operator named without its namespace; empty for an island."""
    return POLICY.get(op, "")


def beyond(values: np.ndarray, dtype: str) -> float:
    """The largest finite magnitude of ``values`` where the half type cannot hold it; else 0."""
    largest = max(float(v) for v in (values.max(initial=0.0), -values.min(initial=0.0)))
    if not math.isfinite(largest):
        largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    return largest if largest > LARGEST[dtype] else 0.0
