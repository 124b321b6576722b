#!/usr/bin/env python3
"""Time the import of models against ``torch.export`` alone, in seconds of the processor.

    python scripts/import_time.py --models resnet50 hf:distilbert-base-uncased --rounds 9

Each round exports the model, and imports it whole (the same export, then our conversion to Relax),
one after the other; both are warmed up once. Medians of the rounds, in seconds of this process on
all its threads, so that other load on the machine counts little. Exit code 1 when an import takes
more than 1.5 times the export.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from tvmfuse.frontend.import_model import workload_of
from tvmfuse.frontend.models import load_model

MOST = 1.5
MODELS = (
    "resnet50", "mobilenet_v3_small", "vit_b_32", "densenet121", "hf:distilbert-base-uncased",
)  # fmt: skip


def spent_s(call: Callable[[], Any]) -> float:
    """Seconds of the processor that a call takes; what earlier calls left is collected before."""
    gc.collect()
    begin = time.process_time()
    call()
    return time.process_time() - begin


def import_s(name: str, rounds: int) -> dict[str, Any]:
    """Medians of both, and their ratio, for a model by name."""
    loaded = load_model(name, weights="random")

    def export() -> None:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.export(loaded.module, loaded.example_inputs, strict=False)

    def whole() -> None:
        workload_of(loaded)

    export()
    whole()
    times = [(spent_s(export), spent_s(whole)) for _ in range(rounds)]
    exported, imported = (statistics.median(column) for column in zip(*times, strict=True))
    return {
        "model": name, "rounds": rounds, "export_s": exported, "import_s": imported,
        "ratio": imported / exported,
    }  # fmt: skip


def main() -> int:
    """Print a table or JSON; exit code 1 when an import takes too long."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = []
    for name in asked.models:
        rows.append(import_s(name, asked.rounds))
        if not asked.json:
            row = rows[-1]
            print(
                f"{name:32} export {row['export_s']:.3f} s  import {row['import_s']:.3f} s  "
                f"ratio {row['ratio']:.2f}",
                flush=True,
            )
    if asked.json:
        print(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))
    return 1 if any(row["ratio"] > MOST for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
