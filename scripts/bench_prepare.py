"""What ``bench.py`` makes once a model, in a process of its own: inputs, answer, ONNX, artifact."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from bench_peers import Stages, Task, arrays, torch_model


def prepare(task: Task, onnx: bool) -> dict[str, Any]:
    """Write ``inputs.npz``, ``reference.npz`` and, where asked for, ``model.onnx``.

    Returns
    -------
    dict
        ``stages_s`` (import, model, export), ``name``, ``provenance``, ``inputs`` and, where the
        export failed, ``onnx_error`` as ``{"missing": why}`` or ``{"failed": why}``.
    """
    stages = Stages()
    loaded = torch_model(task, stages)
    model, inputs = loaded.module, loaded.example_inputs
    import torch
    from torch.utils import _pytree as pytree

    leaves = [x.detach().contiguous() for x in pytree.tree_leaves(inputs) if torch.is_tensor(x)]
    np.savez(task.path("inputs.npz"), *[x.numpy() for x in leaves])
    with torch.no_grad():
        answer = pytree.tree_leaves(model(*inputs))
    np.savez(task.path("reference.npz"), *[a for x in answer for a in arrays(x)])
    result: dict[str, Any] = {
        "stages_s": stages.seconds,
        "name": loaded.name,
        "provenance": loaded.provenance,
        "inputs": [f"{x.numpy().dtype}{list(x.shape)}" for x in leaves],
    }
    if onnx:
        try:
            with stages.time("export"):
                _export_onnx(loaded, task)
        except ModuleNotFoundError as error:
            result["onnx_error"] = {"missing": f"ONNX export: {error}"}
        except Exception as error:
            why = " ".join(str(error).split())[:500]
            result["onnx_error"] = {"failed": f"ONNX export: {type(error).__name__}: {why}"}
    return result


def _export_onnx(loaded: Any, task: Task) -> None:
    import torch

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        model, inputs = loaded.program or loaded.module, loaded.example_inputs
        torch.onnx.export(model, inputs, str(task.path("model.onnx")), dynamo=True, verbose=False)


def compile_artifact(task: Task, options: dict[str, Any]) -> dict[str, Any]:
    """Compile the model with tvmfuse and save it as ``task.artifact``."""
    stages = Stages()
    loaded = torch_model(task, stages)
    with stages.time("import"):
        import tvmfuse
    with stages.time("compile"):
        compiled = tvmfuse.compile(loaded.module, loaded.example_inputs, **options)
        compiled.save(task.artifact)
    return {"stages_s": stages.seconds}
