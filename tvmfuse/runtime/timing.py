"""Time an artifact in a process of its own: ``python -m tvmfuse.runtime.timing DIR``.

The process holds what a deployed one holds, so that its peak memory and latency are those that a
user will see. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tvmfuse.errors import ArtifactError, InputError
from tvmfuse.runtime.arguments import bfloat16_dtype
from tvmfuse.runtime.load import LoadedModel, load
from tvmfuse.signature import TensorSpec, unflatten

_WARM_UP_CALLS = 3


def time_artifact(directory: Path, threads: int | None = None, seconds: float = 3.0) -> dict:
    """Time an artifact in a child process.

    Parameters
    ----------
    directory
        The artifact.
    threads
        Threads of its kernels; None: the loader's default.
    seconds
        How long to call it, at least five calls.

    Returns
    -------
    dict
        ``median``, ``p10``, ``p90`` in milliseconds, ``calls``, ``peak_memory_bytes``.

    Raises
    ------
    ArtifactError
        The child fails; the message holds its last line.
    """
    command = [sys.executable, "-m", "tvmfuse.runtime.timing", str(directory)]
    command += ["--seconds", str(seconds)]
    if threads is not None:
        command += ["--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ArtifactError(f"{directory} was written but does not run: {last}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def random_input(spec: TensorSpec, generator: np.random.Generator) -> np.ndarray:
    """An array that fits ``spec``: normal floats, zeros for integers and booleans."""
    is_bfloat16 = spec.dtype == "bfloat16"
    dtype = bfloat16_dtype() if is_bfloat16 else np.dtype(spec.dtype)
    if is_bfloat16 or dtype.kind == "f":
        return generator.standard_normal(spec.shape).astype(dtype)
    return np.zeros(spec.shape, dtype)


def random_arguments(model: LoadedModel) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of random values for a model, the same every time."""
    generator = np.random.default_rng(0)
    leaves = [random_input(spec, generator) for spec in model.signature.inputs]
    return model.signature.apart(unflatten(model.signature.input_tree, leaves))


def measure(model: LoadedModel, seconds: float) -> dict[str, Any]:
    """Call ``model`` on random inputs for about ``seconds`` and report milliseconds a call."""
    args, kwargs = random_arguments(model)

    def call() -> None:
        try:
            model(*args, **kwargs)
        except InputError:  # random values may fail what is checked behind the kernels
            if not model.manifest.checks:
                raise

    for _ in range(_WARM_UP_CALLS):
        call()
    times_ms: list[float] = []
    begin = time.perf_counter()
    while len(times_ms) < 5 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        call()
        times_ms.append((time.perf_counter() - start) * 1e3)
    ordered = sorted(times_ms)
    return {
        "median": statistics.median(ordered),
        "p10": ordered[len(ordered) // 10],
        "p90": ordered[len(ordered) * 9 // 10],
        "calls": len(ordered),
        "peak_memory_bytes": _peak_memory_bytes(),
    }


def _peak_memory_bytes() -> int:
    """Largest resident size of this process; not ru_maxrss, which inherits the parent's."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


def main() -> None:
    """Entry point of the child process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=3.0)
    parsed = parser.parse_args()
    print(json.dumps(measure(load(parsed.directory, threads=parsed.threads), parsed.seconds)))


if __name__ == "__main__":
    main()
