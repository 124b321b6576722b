"""Child process of ``bench.py``: one system, driven by JSON lines on stdin, answering on stdout.

The protocol has its own copy of stdout; what frameworks print goes to stderr, which the parent
keeps for error messages.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from bench_peers import ADAPTERS, Adapter, Call, Stages, Task, arrays, imported


def status_bytes(field: str) -> int | None:
    """A ``Vm…`` line of ``/proc/self/status`` in bytes; None where there is no such file.

    ``ru_maxrss`` will not do: Linux carries it over ``exec``, so a child of a large parent starts
    with the parent's peak.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(field + ":")]
    return int(found[0]) * 1024 if found else None


def reset_peak() -> bool:
    """Set ``VmHWM`` back to the present size; False where the kernel does not let us."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


class Child:
    """State of one system between requests."""

    def __init__(self) -> None:
        self.call: Call | None = None
        self.bare_bytes = status_bytes("VmRSS")  # the interpreter, NumPy and this script
        self.load_peak_bytes: int | None = None
        self.was_reset = False

    def prepare(self, task: Task, onnx: bool) -> dict[str, Any]:
        """Write inputs, eager's answer and (``onnx``) the ONNX file; return the seconds spent."""
        from bench_prepare import prepare

        return prepare(task, onnx)

    def compile(self, task: Task, options: dict[str, Any]) -> dict[str, Any]:
        """Compile with tvmfuse into ``task.artifact``; return the seconds spent."""
        from bench_prepare import compile_artifact

        return compile_artifact(task, options)

    def load(self, task: Task, system: str) -> dict[str, Any]:
        """Load the system, get its first answer and store it for the parent to check."""
        adapter, stages = ADAPTERS[system], Stages()
        call = adapter.load(task, stages)
        with stages.time("first_call"):
            answer = call()
        np.savez(task.path(f"{system}.npz"), *arrays(answer))
        self.call = call
        call_s = self._fastest_call_s()
        self.load_peak_bytes = status_bytes("VmHWM")
        self.was_reset = reset_peak()
        return {"stages_s": stages.seconds, "call_s": call_s, "imports": imported()}

    def _fastest_call_s(self) -> float:
        """Seconds of the fastest of three calls: one disturbed call must not pass for slowness."""
        assert self.call is not None, "timed before load"
        fastest_s = float("inf")
        for _ in range(3):
            start_s = time.perf_counter()
            self.call()
            fastest_s = min(fastest_s, time.perf_counter() - start_s)
        return fastest_s

    def run(self, calls: int, warmup: int) -> dict[str, Any]:
        """Make ``warmup`` untimed and ``calls`` timed inferences."""
        assert self.call is not None, "run before load"
        cpu_start_s, start_s = time.process_time(), time.perf_counter()
        for _ in range(warmup):
            self.call()
        samples_ms = []
        for _ in range(calls):
            before_s = time.perf_counter()
            self.call()
            samples_ms.append((time.perf_counter() - before_s) * 1e3)
        return {
            "samples_ms": samples_ms,
            "wall_s": time.perf_counter() - start_s,
            "cpu_s": time.process_time() - cpu_start_s,
        }

    def memory(self) -> dict[str, Any]:
        """Peak of load and runs, peak of the runs alone, and the bare process."""
        now = status_bytes("VmHWM")
        peaks = [p for p in (self.load_peak_bytes, now) if p is not None]
        peak = max(peaks) if peaks else None
        increase = None if peak is None or self.bare_bytes is None else peak - self.bare_bytes
        return {
            "peak_memory_bytes": peak,
            "peak_memory_increase_bytes": increase,
            "run_peak_memory_bytes": now if self.was_reset else None,
            "bare_memory_bytes": self.bare_bytes,
        }


def explain(error: BaseException, adapter: Adapter | None) -> dict[str, str]:
    """Word an exception: ``missing`` where a package is absent, else ``failed``."""
    traceback.print_exception(error)
    if isinstance(error, ModuleNotFoundError):
        wanted = " ".join(adapter.packages) if adapter else (error.name or "the package")
        return {"missing": f"{error}; install it with: pip install {wanted}"}
    first_lines = " ".join(str(error).split())[:500]
    return {"failed": f"{type(error).__name__}: {first_lines}"}


def answer(child: Child, request: dict[str, Any]) -> dict[str, Any]:
    """Do one request; errors become an answer."""
    operation = request.pop("do")
    if "task" in request:
        request["task"] = Task(**request["task"])
    try:
        return getattr(child, operation)(**request)
    except Exception as error:
        return explain(error, ADAPTERS.get(request.get("system", "")))


def end_with_parent() -> None:
    """Have Linux kill this process when its parent dies: a stopped one never sees stdin end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG


def main() -> int:
    """Serve requests until stdin ends."""
    end_with_parent()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    child = Child()
    for line in sys.stdin:
        replies.write(json.dumps(answer(child, json.loads(line))) + "\n")
        replies.flush()
    return 0


if __name__ == "__main__":
    # A frozen or slow teardown of a framework must not keep the parent waiting.
    code = main()
    sys.stdout.flush()
    os._exit(code)
