"""Measuring candidates in a persistent child process; a bad candidate is a value."""

from __future__ import annotations

import contextlib
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tvmfuse.errors import MeasureError
from tvmfuse.hardware.record import Hardware
from tvmfuse.tuning import wire
from tvmfuse.tuning.task import count_flops

KINDS = ("instantiate", "build", "timeout", "run", "wrong_answer", "unknown")

_START_S, _REFERENCE_S = 120.0, 60.0
_MAX_DEATHS = 3
_DRIFT = 0.05
_RUN = "import sys; sys.path.insert(0, sys.argv[1]); from tvmfuse.tuning.child import main; main()"


@dataclass(frozen=True)
class Measured:
    """A candidate that ran and answered rightly.

    Parameters
    ----------
    seconds
        Median time of one call.
    samples_s
        All samples, in seconds a call.
    cut_short
        It was so much slower than the best known that timing stopped early.
    """

    seconds: float
    samples_s: tuple[float, ...]
    cut_short: bool = False


@dataclass(frozen=True)
class Failure:
    """A candidate that is no good: ``kind`` is one of ``KINDS``."""

    kind: str
    detail: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"Failure.kind {self.kind!r} is not one of {KINDS}")


Result = Measured | Failure


class Measurer(Protocol):
    """Local, remote and static measurers all look like this."""

    restarts: int
    drifts: int

    def register(self, key: str, module: Any, tolerance: float | None = None) -> None:
        """Introduce a workload by its unscheduled module."""

    def measure(
        self, key: str, modules: Sequence[Any], best_s: float | None = None
    ) -> Iterator[tuple[int, Result]]:
        """Yield (index, result) as they come; an index comes again if it was re-measured."""

    def close(self) -> None:
        """Release what it holds; it may be used again afterwards."""


class LocalMeasurer:
    """Measures on this machine, in a child process that outlives its candidates.

    Parameters
    ----------
    hardware
        The machine: target, cores and cache sizes.
    timeout_s
        Longest a candidate may take to build, and again to run.
    memory_bytes
        Address space a candidate may take beyond what the child uses when idle.
    naive_flops
        Workloads up to this size are checked against their unscheduled module (about 2
        GFLOP/s); larger ones against their first candidate.
    sentinel_every
        The sentinel kernel is timed again after so many candidates.
    seed
        Seed of the random arguments.
    model_bytes
        Size of the model's weights, which decides how cold a kernel finds its own.

    Attributes
    ----------
    restarts
        How many children had to be replaced.
    drifts
        How often the sentinel's time had moved by more than 5 %.
    """

    def __init__(
        self,
        hardware: Hardware,
        timeout_s: float = 10.0,
        memory_bytes: int = 8 << 30,
        naive_flops: float = 8e9,
        sentinel_every: int = 16,
        seed: int = 0,
        model_bytes: int = 0,
    ) -> None:
        self._hardware = hardware
        # Weights that do not stay in L3 from one inference to the next are measured cold:
        # otherwise variants with larger weights look better than they are.
        cold = model_bytes > hardware.l3_bytes
        self._spread_bytes = 3 * hardware.l3_bytes // 2 if cold else 2 * hardware.l2_bytes
        self._timeout_s, self._memory_bytes = timeout_s, memory_bytes
        self._naive_flops, self._every, self._seed = naive_flops, sentinel_every, seed
        self._chunk = 4 * hardware.cores
        self._workloads: dict[str, wire.Register] = {}
        self._known_to_child: set[str] = set()
        self._child: subprocess.Popen[bytes] | None = None
        self._stderr: Any = None
        self._best_s: float | None = None
        self._deaths = 0
        self._since_sentinel = 0
        self._sentinel_s = 0.0
        self.restarts = 0
        self.drifts = 0
        self.failures: Counter[str] = Counter()

    def __enter__(self) -> LocalMeasurer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def register(self, key: str, module: Any, tolerance: float | None = None) -> None:
        """Introduce a workload by its unscheduled module, before its first candidate."""
        if key not in self._workloads:
            naive = count_flops(module) <= self._naive_flops
            self._workloads[key] = wire.Register(key, pickle.dumps(module), tolerance, naive)

    def measure(
        self, key: str, modules: Sequence[Any], best_s: float | None = None
    ) -> Iterator[tuple[int, Result]]:
        """Measure scheduled modules one by one.

        Parameters
        ----------
        key
            A registered workload.
        modules
            Scheduled modules with the arguments of the registered one.
        best_s
            Best time known, in seconds: slower candidates are timed less carefully.

        Yields
        ------
        index, result
            As soon as each is there. Contenders for the best are measured again, and
            yielded again, when the sentinel shows that the machine changed its speed.

        Raises
        ------
        MeasureError
            The child dies again and again without a candidate to blame.
        """
        self._best_s = best_s
        contenders: list[int] = []
        for first in range(0, len(modules), self._chunk):
            chunk = range(first, min(first + self._chunk, len(modules)))
            for index, result in self._measure_chunk(key, modules, chunk):
                yield index, result
                if isinstance(result, Measured):
                    best_s = self._best_s or result.seconds
                    if result.seconds < 1.05 * best_s:
                        contenders.append(index)
                    self._best_s = min(result.seconds, best_s)
            self._since_sentinel += len(chunk)
            if self._since_sentinel >= self._every and self._drifted():
                yield from self._measure_chunk(key, modules, contenders)
                contenders = []

    def close(self) -> None:
        """End the child; a later call starts another one."""
        child, self._child = self._child, None
        self._known_to_child.clear()
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._stderr.close()

    def sentinel_s(self) -> float:
        """Time of the sentinel kernel now, in seconds."""
        return self._patiently(lambda: _median(self._ask(wire.Sentinel(), self._timeout_s)))

    def _drifted(self) -> bool:
        before, self._sentinel_s = self._sentinel_s, self.sentinel_s()
        self._since_sentinel = 0
        drifted = abs(self._sentinel_s / before - 1.0) > _DRIFT
        self.drifts += drifted
        return drifted

    def _measure_chunk(
        self, key: str, modules: Sequence[Any], indices: Sequence[int]
    ) -> Iterator[tuple[int, Result]]:
        """Build some modules together, then run them one by one.

        When the child dies while it builds several, or before all have run, the rest starts
        over, one by one, so that the culprit is known.
        """
        left, together = list(indices), True
        while left:
            part = left if together else left[:1]
            answers = self._build(key, [modules[i] for i in part])
            if answers is None:
                together = False
                continue
            left = left[len(part) :]
            for position, (index, answer) in enumerate(zip(part, answers, strict=True)):
                if self._child is None:  # the one before took the others' code along
                    left = part[position:] + left
                    break
                yield index, answer or self._run(key, position)

    def _build(self, key: str, modules: list[Any]) -> list[Failure | None] | None:
        """One answer a module; None if the child died of one of several."""
        refused = self._patiently(lambda: self._introduce(key))
        if refused is not None:
            return [self._failed(refused.kind, refused.detail) for _ in modules]
        request = wire.Build(key, tuple(pickle.dumps(m) for m in modules))
        answer = self._ask_about_candidate(request, key, "build")
        if isinstance(answer, Failure):
            if len(modules) > 1:
                return None
            return [self._counted(answer)]
        return [a and self._failed(a.kind, a.detail) for a in answer]

    def _run(self, key: str, position: int) -> Result:
        answer = self._ask_about_candidate(wire.Measure(key, position, self._best_s), key, "run")
        if isinstance(answer, Failure):
            return self._counted(answer)
        if isinstance(answer, wire.Failed):
            return self._failed(answer.kind, answer.detail)
        self._deaths = 0
        return Measured(_median(answer), answer.samples_s, answer.cut_short)

    def _ask_about_candidate(self, request: Any, key: str, stage_name: str) -> Any:
        """Ask; the child's death is the candidate's Failure, not yet counted."""
        stage = [stage_name]
        try:
            return self._ask(request, self._timeout_s, stage)
        except wire.TooLate:
            return self._blame(key, stage[0], "timeout", f"no end of {stage[0]} in time")
        except wire.PeerGone:
            kind = "build" if stage[0] == "build" else "run"
            return self._blame(key, stage[0], kind, f"the process died in {stage[0]}")
        except BaseException:  # an interrupt: the reply would be taken for the next one's
            self.close()
            raise

    def _blame(self, key: str, stage: str, kind: str, what: str) -> Failure:
        """Replace the child; a death while computing the reference blames no candidate."""
        detail = f"{what}; {self._bury()}"
        if stage == "reference":
            old = self._workloads[key]
            self._workloads[key] = wire.Register(key, old.module, old.tolerance, False)
            return Failure("unknown", f"the unscheduled module: {detail}")
        return Failure(kind, detail)

    def _failed(self, kind: str, detail: str) -> Failure:
        return self._counted(Failure(kind, detail))

    def _counted(self, failure: Failure) -> Failure:
        self.failures[failure.kind] += 1
        return failure

    def _introduce(self, key: str) -> wire.Failed | None:
        """Start the child and tell it the workload, each if need be."""
        if key not in self._workloads:
            raise KeyError(f"workload {key} is not registered")
        if self._child is None:
            self._start()
        if key in self._known_to_child:
            return None
        answer = self._ask(self._workloads[key], self._timeout_s)
        if isinstance(answer, wire.Failed):
            return answer
        self._known_to_child.add(key)
        return None

    def _patiently(self, action: Any) -> Any:
        """Repeat an action of the child's own that it dies in, but not for ever."""
        while True:
            try:
                if self._child is None:
                    self._start()
                return action()
            except (wire.PeerGone, wire.TooLate) as error:
                why = self._bury()
                self._deaths += 1
                if self._deaths >= _MAX_DEATHS:
                    raise MeasureError(
                        f"the measuring process ended {self._deaths} times in a row without a "
                        f"candidate to blame ({type(error).__name__}): {why}. Try "
                        f"`{sys.executable} -c 'import tvm'`, and look at free memory."
                    ) from error
            except BaseException:
                self.close()
                raise

    def _start(self) -> None:
        package_root = str(Path(__file__).resolve().parents[2])
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
        self._child = subprocess.Popen(
            [sys.executable, "-c", _RUN, package_root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
            start_new_session=True,
        )
        machine = self._hardware
        start = wire.Start(
            target_json=dict(machine.target_json),
            threads=machine.cores,
            spread_bytes=self._spread_bytes,
            memory_bytes=self._memory_bytes,
            seed=self._seed,
        )
        self._sentinel_s = _median(self._ask(start, _START_S))
        self._since_sentinel = 0

    def _ask(self, message: Any, timeout_s: float, stage: list[str] | None = None) -> Any:
        """Send a request and wait for its answer; each stage has its own time."""
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None
        wire.write_message(child.stdin.fileno(), message)
        while True:
            answer = wire.read_message(child.stdout.fileno(), timeout_s)
            if not isinstance(answer, wire.Stage):
                return answer
            if stage is not None:
                stage[0] = answer.name
            timeout_s = _REFERENCE_S if answer.name == "reference" else self._timeout_s

    def _bury(self) -> str:
        """End the child and tell how it ended."""
        child = self._child
        if child is None:
            return "it did not start"
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=0.2)
        code = child.poll()
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - 400))
        said = self._stderr.read().decode(errors="replace").strip().splitlines()
        self.close()
        self.restarts += 1
        how = "killed" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
        return how + (f", last words: {said[-1][:200]}" if said else "")


def _median(timed: wire.Timed) -> float:
    return statistics.median(timed.samples_s) if timed.samples_s else float("nan")
