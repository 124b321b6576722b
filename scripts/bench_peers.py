"""The systems that ``bench.py`` compares: how each is loaded and called.

An adapter runs inside a child process of its own. It imports its framework in ``load`` and
nowhere else, so that the memory of one system is never charged to another. ``load`` appends
``(stage, seconds)`` pairs to ``stages`` and returns a function without arguments that does one
inference on the prepared inputs; ``arrays`` turns what that returned into NumPy, untimed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Task:
    """What every system is given: one model, one set of inputs, one number of threads.

    Parameters
    ----------
    spec, batch, shape, weights, seed
        Passed on to ``tvmfuse.frontend.models.load_model``.
    threads
        Threads one inference may use.
    folder
        Where ``inputs.npz``, ``reference.npz`` and ``model.onnx`` of this model lie.
    artifact
        Folder that ``tvmfuse.load`` opens; empty where tvmfuse is not asked for.
    """

    spec: str
    batch: int | None
    shape: str | None
    weights: str | None
    seed: int
    threads: int
    folder: str
    artifact: str = ""

    def path(self, name: str) -> Path:
        """File ``name`` of this model."""
        return Path(self.folder) / name

    def inputs(self) -> list[np.ndarray]:
        """The inputs in flat order; the same values for every system."""
        return read_arrays(self.path("inputs.npz"))


@dataclass
class Stages:
    """Seconds spent in each stage from nothing to the first answer."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to stage ``name``."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            spent_s = time.perf_counter() - start_s
            self.seconds[name] = self.seconds.get(name, 0.0) + spent_s


Call = Callable[[], Any]


@dataclass(frozen=True)
class Adapter:
    """One system to measure.

    Parameters
    ----------
    label
        How tables name it; says what was switched on.
    packages
        Distributions it cannot do without, as ``pip install`` names them.
    load
        ``load(task, stages) -> call``.
    needs_onnx
        Whether it starts from the exported ``model.onnx``.
    """

    label: str
    packages: tuple[str, ...]
    load: Callable[[Task, Stages], Call]
    needs_onnx: bool = False


def read_arrays(path: Path) -> list[np.ndarray]:
    """Read the arrays of an ``.npz`` in the order in which they were written."""
    with np.load(path) as stored:
        return [stored[name] for name in stored.files]


def arrays(value: Any) -> list[np.ndarray]:
    """Flatten one answer (containers of tensors of any framework) into NumPy arrays."""
    if isinstance(value, np.ndarray):
        return [value]
    if hasattr(value, "detach"):
        return [value.detach().numpy()]
    if isinstance(value, dict) or hasattr(value, "to_tuple"):
        return [leaf for part in value.values() for leaf in arrays(part)]
    if not hasattr(value, "__dlpack__") and hasattr(value, "__iter__"):
        return [leaf for part in value for leaf in arrays(part)]
    return [value.numpy() if hasattr(value, "numpy") else np.from_dlpack(value)]


def torch_model(task: Task, stages: Stages) -> Any:
    """Import torch and load the model: a ``LoadedReference``, the same for the same task."""
    with stages.time("import"):
        import torch

        from tvmfuse.frontend.models import load_model

    torch.set_num_threads(task.threads)
    with stages.time("model"):
        return load_model(
            task.spec, batch=task.batch, shape=task.shape, weights=task.weights, seed=task.seed
        )


def torch_inputs(task: Task, example_inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The stored inputs in the structure of ``example_inputs``, without a copy."""
    import torch
    from torch.utils import _pytree as pytree

    leaves, tree = pytree.tree_flatten(example_inputs)
    stored = iter(task.inputs())
    given = [torch.from_numpy(next(stored)) if torch.is_tensor(x) else x for x in leaves]
    return pytree.tree_unflatten(given, tree)


def _no_grad_call(model: Any, inputs: tuple[Any, ...]) -> Call:
    import torch

    def call() -> Any:
        with torch.no_grad():
            return model(*inputs)

    return call


def load_eager(task: Task, stages: Stages) -> Call:
    """PyTorch as it is."""
    loaded = torch_model(task, stages)
    return _no_grad_call(loaded.module, torch_inputs(task, loaded.example_inputs))


def _load_inductor(task: Task, stages: Stages, mode: str | None) -> Call:
    loaded = torch_model(task, stages)
    with stages.time("import"):
        import torch
        import torch._inductor.config as inductor_config
    inductor_config.freezing = True
    compiled = torch.compile(loaded.module, mode=mode)
    return _no_grad_call(compiled, torch_inputs(task, loaded.example_inputs))


def load_inductor(task: Task, stages: Stages) -> Call:
    """``torch.compile`` with weights frozen into the code."""
    return _load_inductor(task, stages, None)


def load_inductor_autotuned(task: Task, stages: Stages) -> Call:
    """``torch.compile(mode="max-autotune")`` with weights frozen into the code."""
    return _load_inductor(task, stages, "max-autotune")


def load_onnxruntime(task: Task, stages: Stages) -> Call:
    """ONNX Runtime's CPU provider, all graph optimisations."""
    with stages.time("import"):
        import onnxruntime as ort
    with stages.time("load"):
        options = ort.SessionOptions()
        options.intra_op_num_threads = task.threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        session = ort.InferenceSession(
            str(task.path("model.onnx")), options, providers=["CPUExecutionProvider"]
        )
    names = [i.name for i in session.get_inputs()]
    feed = dict(zip(names, task.inputs(), strict=True))
    return lambda: session.run(None, feed)


def load_openvino(task: Task, stages: Stages) -> Call:
    """OpenVINO's CPU plugin for latency; float32 is asked for, since bf16 is its default on AMX."""
    with stages.time("import"):
        import openvino as ov
    with stages.time("load"):
        compiled = ov.Core().compile_model(
            str(task.path("model.onnx")),
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": task.threads,
                # Two virtual CPUs of one physical core would else count as one thread.
                "ENABLE_HYPER_THREADING": True,
                "INFERENCE_PRECISION_HINT": "f32",
            },
        )
        request = compiled.create_infer_request()
    inputs = dict(enumerate(task.inputs()))

    def call() -> list[np.ndarray]:
        done = request.infer(inputs, share_inputs=True, share_outputs=True)
        return [done[port] for port in compiled.outputs]

    return call


def load_tvm_stock(task: Task, stages: Stages) -> Call:
    """TVM as its tutorials use it: import, default pipeline, no tuning."""
    loaded = torch_model(task, stages)
    with stages.time("import"):
        import torch
        import tvm
        from tvm import relax
        from tvm.relax.frontend.torch import from_exported_program

        from tvmfuse.hardware.targets import resolve_target
    with stages.time("load"):
        with torch.no_grad():
            example = torch_inputs(task, loaded.example_inputs)
            exported = loaded.program or torch.export.export(loaded.module, example)
            module = from_exported_program(exported, unwrap_unit_return_tuple=True)
        target = tvm.target.Target(resolve_target("llvm", task.threads).target_json)
        executable = tvm.compile(module, target)
        machine = relax.VirtualMachine(executable, tvm.cpu())
    main = machine["main"]
    inputs = [tvm.runtime.tensor(x) for x in task.inputs()]
    return lambda: main(*inputs)


def load_tvmfuse(task: Task, stages: Stages) -> Call:
    """A tvmfuse artifact, from NumPy, without torch and without the compiler."""
    with stages.time("import"):
        import tvmfuse
    with stages.time("load"):
        model = tvmfuse.load(task.artifact, threads=task.threads)
    inputs = task.inputs()
    return lambda: model(*inputs)


ADAPTERS: dict[str, Adapter] = {
    "tvmfuse": Adapter("tvmfuse", ("tvmfuse",), load_tvmfuse),
    "eager": Adapter("PyTorch eager", ("torch",), load_eager),
    "inductor": Adapter("torch.compile (freezing)", ("torch",), load_inductor),
    "inductor-max-autotune": Adapter(
        "torch.compile (freezing, max-autotune)", ("torch",), load_inductor_autotuned
    ),
    "onnxruntime": Adapter("ONNX Runtime", ("onnxruntime",), load_onnxruntime, needs_onnx=True),
    "openvino": Adapter("OpenVINO (f32)", ("openvino",), load_openvino, needs_onnx=True),
    "tvm-stock": Adapter(
        "tvm-stock (untuned default pipeline)", ("torch", "apache-tvm"), load_tvm_stock
    ),
}
PEERS = tuple(name for name in ADAPTERS if name != "tvmfuse")

# What a process really imported, so that its memory can be judged.
WATCHED = ("torch", "torchvision", "tvm", "tvm_ffi", "onnx", "onnxruntime", "openvino", "tvmfuse")


def imported() -> list[str]:
    """Which of the heavy packages this process has imported."""
    return [name for name in WATCHED if name in sys.modules]
