"""How far a result may be off: one table by level and type, relative to the largest magnitude.

Kernel: two orders of summation of the same products; a variant that rounds more by construction
(Winograd) brings a bound of its own. Layer: all rounding up to this layer. Model: likewise, at the
outputs, where a classifier's last product has gathered it all. Metric: what the user's task sees.
"""

from __future__ import annotations

import torch

from tvmfuse.signature import OWN_TYPES

# Calibrated on 2026-12-01 (x86-64, AVX-512, 2 threads; ResNet-18 and -50, MobileNet-V2,
# DenseNet-121, ViT-B/16, a 12-layer BERT-size encoder, nets with group and instance norm). Largest
# float32 errors seen: kernel 6e-7; layer 1.8e-6, and 9e-6 with Winograd convolutions; model 1.4e-5,
# and 7e-5 with an instance norm behind Winograd.
TOLERANCES: dict[str, dict[str, float]] = {
    "kernel": {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2, "bfloat16": 4e-2},
    "layer": {"float64": 1e-10, "float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1},
    "model": {"float64": 1e-10, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1},
}
METRIC_TOLERANCE = 1e-3  # of the metric's own value


def tolerance(level: str, dtype: torch.dtype, computes: str = OWN_TYPES) -> float:
    """Entry of the table; raises KeyError for a type without one.

    ``computes`` is that of the signature: where products take halves, what behind them is float32
    still has a half's digits.
    """
    own = TOLERANCES[level][str(dtype).removeprefix("torch.")]
    return own if computes == OWN_TYPES else max(own, TOLERANCES[level][computes])
