"""``tvmfuse diagnose``: where an artifact's time goes, kernel by kernel, against this machine.

The artifact is called for some seconds with a clock around every kernel. What each one computes
and moves is in its report. Two speeds of the machine are measured beside it, so that every kernel
has a mark to stand against: NumPy's matrix product for arithmetic, and copying memory for traffic.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmfuse.errors import ArtifactError
from tvmfuse.runtime import load
from tvmfuse.runtime.manifest import REPORT
from tvmfuse.runtime.timing import random_arguments

_WARM_UP_CALLS = 2
_LEAST_CALLS = 3
_PRODUCT = 1536  # rows and columns: long enough for the library's best speed, 10 ms a thread
_COPY_BYTES = 1 << 28  # of each operand, several times any last-level cache
_REPEATS = 5


@dataclass(frozen=True)
class Speeds:
    """What this machine does, by measuring.

    Parameters
    ----------
    flops
        Float32 operations a second of NumPy's matrix product, for the artifact's threads: that of
        all CPUs of the process, in proportion.
    bytes
        Bytes a second of copying memory with the artifact's threads, read and written.
    """

    flops: float
    bytes: float


@dataclass(frozen=True)
class KernelRow:
    """One kernel of an artifact, all its calls together.

    Parameters
    ----------
    kernel, ops
        Its name in the library, and what it computes.
    calls
        In one inference.
    us
        Median microseconds of one inference that all its calls take.
    share
        Of the time of all kernels.
    gflops, gbytes
        Operations and bytes a second, in 1e9; bytes are those of operands and results, each once.
    of_flops, of_bytes
        The same as parts of the machine's speeds. Bytes that lie in a cache may exceed 1.
    bound
        Which of the two is larger: ``compute`` or ``memory``.
    """

    kernel: str
    ops: tuple[str, ...]
    calls: int
    us: float
    share: float
    gflops: float | None = None
    gbytes: float | None = None
    of_flops: float | None = None
    of_bytes: float | None = None
    bound: str = ""


def diagnose(directory: Path, threads: int | None = None, seconds: float = 3.0) -> dict[str, Any]:
    """Time every kernel of an artifact.

    Parameters
    ----------
    directory
        Folder of the artifact.
    threads
        Of its kernels; None: the loader's default.
    seconds
        How long to call it, at least three calls.

    Returns
    -------
    dict
        ``artifact, threads, calls, speeds``, ``kernels_us`` (median sum of all kernels a call),
        and ``kernels``: rows as :class:`KernelRow` has them, the longest first.

    Raises
    ------
    ArtifactError
        It cannot be loaded, or its report does not say what its kernels compute.
    """
    model = load(directory, threads=threads)
    args, kwargs = random_arguments(model)
    bound = model.signature.bind(args, kwargs)
    for _ in range(_WARM_UP_CALLS):
        model.clock(bound)
    runs = list[list[tuple[str, float]]]()
    begin = time.perf_counter()
    while len(runs) < _LEAST_CALLS or time.perf_counter() - begin < seconds:
        runs.append(model.clock(bound))
    speeds = measure_speeds(model.threads)
    return {
        "artifact": str(directory),
        "threads": model.threads,
        "calls": len(runs),
        "speeds": asdict(speeds),
        "kernels_us": statistics.median(sum(s for _, s in run) for run in runs) * 1e6,
        "kernels": [asdict(row) for row in rows_of(runs, _work(directory), speeds)],
    }


def rows_of(
    runs: list[list[tuple[str, float]]], work: dict[str, Any], speeds: Speeds
) -> list[KernelRow]:
    """Sum up the calls of each kernel; the longest first.

    Parameters
    ----------
    runs
        Of each call of the model: name and seconds of its kernels.
    work
        ``ops``, ``dtype``, ``flops`` and ``bytes`` by kernel, as the report has them.
    speeds
        Of the machine.
    """
    totals, calls = defaultdict[str, list[float]](list), dict[str, int]()
    for run in runs:
        spent, count = defaultdict[str, float](float), defaultdict[str, int](int)
        for name, seconds in run:
            spent[name] += seconds
            count[name] += 1
        for name, seconds in spent.items():
            totals[name].append(seconds)
        calls.update(count)
    medians = {name: statistics.median(found) for name, found in totals.items()}
    whole = sum(medians.values())
    rows = [
        _row(name, calls[name], seconds, seconds / whole, _work_of(name, work), speeds)
        for name, seconds in medians.items()
    ]
    return sorted(rows, key=lambda row: -row.us)


def _row(
    name: str, calls: int, seconds: float, share: float, work: dict[str, Any] | None, speeds: Speeds
) -> KernelRow:
    if work is None:
        return KernelRow(name, (), calls, seconds * 1e6, share)
    flops, moved = work["flops"] * calls / seconds, work["bytes"] * calls / seconds
    of_flops, of_bytes = flops / speeds.flops, moved / speeds.bytes
    return KernelRow(
        name, tuple(work["ops"]), calls, seconds * 1e6, share, flops / 1e9, moved / 1e9,
        of_flops, of_bytes, "compute" if of_flops > of_bytes else "memory",
    )  # fmt: skip


def _work_of(name: str, work: dict[str, Any]) -> dict[str, Any] | None:
    """A kernel that writes into a larger tensor has a longer name than what it was made of."""
    while name not in work:
        shorter = re.sub(r"_(at|over)_\d+$", "", name)
        if shorter == name:
            return None
        name = shorter
    return dict(work[name])


def _work(directory: Path) -> dict[str, Any]:
    try:
        report = json.loads((directory / REPORT).read_text(encoding="utf-8"))
        return dict(report["work"])
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(
            f"{directory / REPORT} does not say what each kernel computes ({error}); an artifact "
            "of an older release has to be compiled again"
        ) from None


def measure_speeds(threads: int) -> Speeds:
    """Measure NumPy's matrix product, and copying with so many threads; the best of five."""
    generator = np.random.default_rng(0)
    a, b = generator.standard_normal((2, _PRODUCT, _PRODUCT), dtype=np.float32)
    out = np.empty_like(a)
    product_s = _best(lambda: np.matmul(a, b, out=out))
    cpus = len(os.sched_getaffinity(0))
    source = [np.ones(_COPY_BYTES // threads, np.uint8) for _ in range(threads)]
    target = [np.zeros_like(part) for part in source]
    with ThreadPoolExecutor(threads) as pool:
        copy_s = _best(lambda: list(pool.map(np.copyto, target, source)))
    return Speeds(
        flops=2 * _PRODUCT**3 / product_s * min(threads, cpus) / cpus,
        bytes=2 * sum(part.nbytes for part in source) / copy_s,
    )


def _best(call: Any) -> float:
    times = list[float]()
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)
