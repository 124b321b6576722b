"""One model for ``fusion_table.py``, in a process of its own: figures of two builds, one export."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from tvmfuse.build import build
from tvmfuse.choose import choose_kernels
from tvmfuse.frontend.import_model import workload_of
from tvmfuse.frontend.models import load_model
from tvmfuse.fusion.group import CATEGORIES
from tvmfuse.fusion.planner import make_plan
from tvmfuse.fusion.rules.selection import RuleSet, select_rules
from tvmfuse.hardware import Hardware, resolve_target
from tvmfuse.passes.pipeline import fuse, lowering
from tvmfuse.passes.specialize import group_kernels
from tvmfuse.workload import Workload


def figures(workload: Workload, hardware: Hardware, rules: RuleSet) -> dict[str, Any]:
    """Build with these rules and templates alone, and read the compiled program."""
    low, merges = lowering(workload, hardware, rules.merging)
    plan = make_plan(low, hardware, rules.vertical, rules.off, rules.diagonal)
    fused = fuse(low, plan)
    groups = group_kernels(fused.module, hardware)
    artifact = build(fused, groups, choose_kernels(groups, None, hardware), hardware)
    counts = Counter(plan.counts()) + merges.counts()
    return {**artifact.footprint.to_json(), "fusion": {c: counts[c] for c in CATEGORIES}}


def onnxruntime_nodes(loaded: Any) -> dict[str, Any]:
    """Nodes of the graph that ONNX Runtime would run, and of the exported one."""
    import onnx
    import onnxruntime
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path, optimised = Path(folder) / "model.onnx", Path(folder) / "optimised.onnx"
        with torch.no_grad():
            model = loaded.program or loaded.module
            torch.onnx.export(model, loaded.example_inputs, str(path), dynamo=True, verbose=False)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.optimized_model_filepath = str(optimised)
        options.log_severity_level = 3  # it warns that the result is for this machine only
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        counts = [
            len(onnx.load(str(p), load_external_data=False).graph.node) for p in (path, optimised)
        ]
    return {"exported": counts[0], "nodes": counts[1]}


def answer(name: str) -> dict[str, Any]:
    """All figures of one model; what ONNX cannot do is said, the rest is not lost with it."""
    hardware = resolve_target("llvm")
    loaded = load_model(name, weights="random")
    workload = workload_of(loaded)
    found: dict[str, Any] = {
        "model": name,
        "target": hardware.key,
        "unfused": figures(workload, hardware, select_rules(no_rule=CATEGORIES)),
        "fused": figures(workload, hardware, select_rules()),
    }
    try:
        found["onnxruntime"] = onnxruntime_nodes(loaded)
    except Exception as error:  # whatever the exporter or the runtime makes of the model
        why = " ".join(str(error).split())[:300]
        found["onnxruntime"] = {"failed": f"{type(error).__name__}: {why}"}
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        result = answer(sys.argv[1])
    print(json.dumps(result))
