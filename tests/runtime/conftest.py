"""A tiny model, built with TVM once a session: relu(x @ w0) @ w1, plus x itself where wanted."""

import importlib.metadata
import sys
from pathlib import Path

import numpy as np
import pytest

from tvmfuse.runtime import Manifest, save_artifact
from tvmfuse.signature import Signature, TensorSpec

SIZE = 32


def build_library(path: Path, size: int = SIZE, dtype: str = "float32", echo: bool = False) -> None:
    """Export ``main(x, (w0, w1)) -> (y,)``, or ``(y, x, w0)`` with ``echo``."""
    import tvm
    from tvm import relax

    x = relax.Var("x", relax.TensorType((2, size), dtype))
    square = relax.TensorType((size, size), dtype)
    weights = relax.Var("weights", relax.TupleType([square, square]))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, weights]):
        with builder.dataflow():
            w0 = builder.emit(relax.TupleGetItem(weights, 0))
            w1 = builder.emit(relax.TupleGetItem(weights, 1))
            hidden = builder.emit(relax.op.nn.relu(relax.op.matmul(x, w0)))
            y = builder.emit(relax.op.matmul(hidden, w1))
            results = builder.emit_output(relax.Tuple([y, x, w0] if echo else [y]))
        builder.emit_func_output(results)
    schedules = tvm.s_tir.dlight.ApplyDefaultSchedule(parallel_rows())
    module = relax.transform.LegalizeOps()(builder.get())
    target = tvm.target.Target("llvm")
    with target:
        module = schedules(module)
    tvm.compile(module, target).export_library(str(path))


def parallel_rows():
    """Spread every kernel's rows over the pool's threads, so that thread counts matter.

    The class is made late because importing this file must not import TVM.
    """
    from tvm.s_tir import Schedule
    from tvm.s_tir.dlight import ScheduleRule

    class Rows(ScheduleRule):
        def apply(self, func, target, tunable):
            schedule = Schedule(func)
            for block in schedule.get_child_blocks(schedule.get_sblock("root")):
                schedule.parallel(schedule.get_loops(block)[0])
            return schedule

    return Rows()


def random_weights(size: int = SIZE, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((size, size), dtype=np.float32) for name in ("w.b", "w.a")}


def describe(size: int = SIZE, dtype: str = "float32", echo: bool = False, **changes) -> Manifest:
    def spec(name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, shape, dtype)

    outputs = [spec("output_0", 2, size)]
    if echo:
        outputs += [spec("output_1", 2, size), spec("output_2", size, size)]
    tree = {"dict": {"y": {"tensor": 0}}}
    if echo:
        tree = {"tuple": [{"tensor": i} for i in range(3)]}
    inputs = {"tuple": [{"tensor": 0}]}
    versions = {
        "tvm": importlib.metadata.version("apache-tvm"),
        "tvm_ffi": importlib.metadata.version("apache-tvm-ffi"),
        "tvmfuse": "0.1.0",
    }
    fields = {
        "signature": Signature((spec("x", 2, size),), tuple(outputs), inputs, tree),
        "target_key": "llvm-test",
        "target_json": {"kind": "llvm"},
        "features": (),
        "versions": versions,
        "provenance": {"model": "two matmuls"},
        "kernels": 3,
    }
    return Manifest(**{**fields, **changes})


def runtime_library() -> Path:
    import tvm

    return Path(tvm.__file__).parent / "lib" / "libtvm_runtime.so"


def expected(x: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    w0, w1 = weights.values()
    return np.maximum(x @ w0, 0) @ w1


@pytest.fixture(scope="session")
def tiny():
    """This file's functions, for tests that build more than the one artifact."""
    return sys.modules[__name__]


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("library") / "model.so"
    build_library(path)
    return path


@pytest.fixture
def artifact(tmp_path, library) -> Path:
    folder = tmp_path / "artifact"
    save_artifact(
        folder,
        library=library,
        weights=random_weights(),
        manifest=describe(),
        runtime_library=runtime_library(),
    )
    return folder


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((2, SIZE), dtype=np.float32)
