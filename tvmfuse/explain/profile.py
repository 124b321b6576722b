"""Measured times by kind of operator from a trace of PyTorch's profiler."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tvmfuse.errors import OptionError

# ATen operators under the names that the graph has for them.
_KINDS = {
    "convolution": "nn.conv2d", "conv2d": "nn.conv2d", "conv1d": "nn.conv1d",
    "conv3d": "nn.conv3d", "linear": "matmul", "addmm": "matmul", "mm": "matmul", "bmm": "matmul",
    "matmul": "matmul", "batch_norm": "nn.batch_norm", "layer_norm": "nn.layer_norm",
    "native_layer_norm": "nn.layer_norm", "group_norm": "nn.group_norm", "relu": "nn.relu",
    "relu_": "nn.relu", "silu": "nn.silu", "silu_": "nn.silu", "gelu": "nn.gelu",
    "softmax": "nn.softmax", "_softmax": "nn.softmax", "max_pool2d": "nn.max_pool2d",
    "avg_pool2d": "nn.avg_pool2d", "adaptive_avg_pool2d": "mean", "cat": "concat",
    "add": "add", "add_": "add", "mul": "multiply", "mul_": "multiply", "div": "divide",
    "sub": "subtract", "hardtanh": "clip", "hardtanh_": "clip", "clamp": "clip",
    "embedding": "take", "permute": "permute_dims", "transpose": "permute_dims",
    "scaled_dot_product_attention": "nn.attention", "sigmoid": "sigmoid", "tanh": "tanh",
    "mean": "mean", "sum": "sum", "max": "max",
}  # fmt: skip


def measured_ms(path: Path) -> dict[str, float]:
    """Milliseconds by kind of operator; those without a name here keep ``aten::…``.

    Parameters
    ----------
    path
        What ``torch.profiler.profile(...).export_chrome_trace`` wrote, ``.json`` or
        ``.json.gz``. Only outermost operators count: what they call is in their time.

    Raises
    ------
    OptionError
        No such file, not a trace, or a trace without operators.
    """
    if not path.is_file():
        raise OptionError(f"--profile {path}: no such file; give a trace of torch.profiler")
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        events = json.loads(raw)["traceEvents"]
        found = _outermost(e for e in events if e.get("cat") == "cpu_op" and e.get("ph") == "X")
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise OptionError(
            f"--profile {path}: not a trace of torch.profiler ({type(error).__name__}: {error}); "
            "write one with profiler.export_chrome_trace(FILE)"
        ) from error
    if not found:
        raise OptionError(f"--profile {path}: the trace holds no operators (category cpu_op)")
    return found


def _outermost(events: Iterable[dict[str, Any]]) -> dict[str, float]:
    times: dict[str, float] = defaultdict(float)
    ends: dict[Any, float] = {}
    for event in sorted(events, key=lambda e: (float(e["ts"]), -float(e["dur"]))):
        thread = (event.get("pid"), event.get("tid"))
        if float(event["ts"]) < ends.get(thread, float("-inf")):
            continue
        ends[thread] = float(event["ts"]) + float(event["dur"])
        name = str(event["name"])
        times[_KINDS.get(name.removeprefix("aten::"), name)] += float(event["dur"]) / 1e3
    return {k: round(v, 6) for k, v in times.items()}
