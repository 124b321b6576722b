"""Parent's side of one system: start its process, ask it, keep it quiet between its turns."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("bench_child.py")


def child_environment(name: str, threads: int, scratch: Path) -> dict[str, str]:
    """Environment of system ``name``: same threads for all, no compile cache of another."""
    count = str(threads)
    same = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")
    return {
        **os.environ,
        **dict.fromkeys(same, count),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / f"cache-{name}"),
        "PYTHONUNBUFFERED": "1",
    }


class SystemProcess:
    """One system in a process of its own.

    Outside :meth:`ask` the whole session of the process is stopped with SIGSTOP: thread pools
    that wait actively (OpenMP, TVM) would otherwise take the cores from the system whose turn
    it is. All systems are treated alike, so none has to change how its pool waits.

    Parameters
    ----------
    name
        A key of ``bench_peers.ADAPTERS``, or any other name for a helper process.
    threads
        Threads one inference may use.
    scratch
        Existing folder for its stderr and caches.
    """

    def __init__(self, name: str, threads: int, scratch: Path) -> None:
        self.name = name
        self.problem: dict[str, str] | None = None
        self._log = scratch / f"{name}.stderr"
        self.started_s = time.perf_counter()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=child_environment(name, threads, scratch),
                start_new_session=True,
            )

    def ask(self, timeout_s: float, **request: Any) -> dict[str, Any]:
        """Send one request and return the answer; what went wrong is kept in ``problem``.

        A process that dies or does not answer within ``timeout_s`` is ended and answers
        ``{"failed": why}``, now and from then on.
        """
        if self.problem is not None:
            return dict(self.problem)
        self._signal(signal.SIGCONT)
        try:
            reply = self._exchange(request, timeout_s)
        finally:
            self._signal(signal.SIGSTOP)
        if "missing" in reply or "failed" in reply:
            self.problem = reply
            self.close()
        return reply

    def _exchange(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._died()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return {"failed": f"no answer to {request['do']!r} within {timeout_s:g} s"}
        line = self._process.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else self._died()

    def _died(self) -> dict[str, str]:
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        tail = " | ".join(self._log.read_text(errors="replace").split("\n")[-4:]).strip(" |")
        return {"failed": f"the process ended with {how}" + (f": {tail}" if tail else "")}

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """End the process and whatever it started."""
        self._signal(signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._process.wait()


def busy_cpu_s() -> float | None:
    """CPU seconds that all processes of this machine have used; None where unknown."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
