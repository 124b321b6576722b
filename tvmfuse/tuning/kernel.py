"""What the measuring child does with one compiled kernel: arguments, timing, comparison."""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm.s_tir import Schedule

# Largest accepted |candidate - reference| / max|reference|: two orders of summation of a
# few thousand products differ by that much.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2}

SAMPLE_S = 1e-3  # one sample times so many calls that clock and call overhead vanish
MIN_SAMPLES, MAX_SAMPLES = 3, 32
STEADY_SPREAD = 0.02
MAX_COPIES = 64


@dataclass(frozen=True)
class ArgSpec:
    """Shape, dtype and direction of one argument."""

    shape: tuple[int, ...]
    dtype: str
    is_output: bool

    @property
    def n_bytes(self) -> int:
        """Size of the argument."""
        bits = np.dtype(_numpy_dtype(self.dtype)).itemsize
        return int(np.prod(self.shape, dtype=np.int64)) * bits


def argument_specs(module: Any) -> tuple[ArgSpec, ...]:
    """Read the arguments of an *unscheduled* ``main``; raises ValueError for dynamic ones."""
    params = list(module["main"].params)
    written = _written_buffers(module)
    specs = []
    for param in params:
        shape = getattr(param.ty, "shape", None)
        if shape is None:
            raise ValueError(f"argument {param.name} is no buffer")
        if not all(isinstance(n, int | tvm.tirx.IntImm) for n in shape):
            raise ValueError(f"argument {param.name} has a dynamic shape {list(shape)}")
        is_output = any(param.same_as(buffer) for buffer in written)
        specs.append(ArgSpec(tuple(int(n) for n in shape), str(param.ty.dtype), is_output))
    if not any(spec.is_output for spec in specs):
        raise ValueError("no argument is written: nothing can be compared")
    return tuple(specs)


def _written_buffers(module: Any) -> list[Any]:
    schedule = Schedule(module, error_render_level="none")
    root = schedule.get_sblock("root")
    found, stack = [], list(schedule.get_child_blocks(root))
    while stack:
        block = stack.pop()
        found += [region.source for region in schedule.get(block).writes]
        stack += schedule.get_child_blocks(block)
    return found


class Arguments:
    """A few equal sets of arguments, random in, 64-byte aligned.

    Kernels rotate over sets of ``spread_bytes`` together, so that they find their data in the
    cache level where they find it inside a model.
    """

    def __init__(self, specs: Sequence[ArgSpec], spread_bytes: int, seed: int) -> None:
        self.specs = tuple(specs)
        set_bytes = max(1, sum(spec.n_bytes for spec in specs))
        n_sets = min(MAX_COPIES, max(1, -(-spread_bytes // set_bytes)))
        first = [_Array(spec) for spec in specs]
        rng = np.random.default_rng(seed)
        for array in first:
            if not array.spec.is_output:
                array.fill_random(rng)
        self._sets = [first]
        for _ in range(n_sets - 1):
            self._sets.append([array.copy() for array in first])
        self.n_bytes = set_bytes * n_sets
        self._inputs_crc = self._crc()

    @property
    def tensors(self) -> list[list[Any]]:
        """The sets as TVM tensors."""
        return [[array.tensor for array in one] for one in self._sets]

    def poison(self) -> None:
        """Overwrite the outputs of the first set, so that a missing store shows."""
        for array in self._sets[0]:
            if array.spec.is_output:
                array.raw[:] = 0x5A

    def outputs(self) -> list[np.ndarray]:
        """Copies of the first set's outputs as float64 (floats) or as they are."""
        return [array.values() for array in self._sets[0] if array.spec.is_output]

    def inputs_intact(self) -> bool:
        """Whether the first set's inputs are still what they were."""
        return self._crc() == self._inputs_crc

    def _crc(self) -> int:
        crc = 0
        for array in self._sets[0]:
            if not array.spec.is_output:
                crc = zlib.crc32(array.raw.data, crc)
        return crc


class _Array:
    """One argument: raw bytes owned by TVM, seen by NumPy and under its own dtype."""

    def __init__(self, spec: ArgSpec) -> None:
        self.spec = spec
        storage = tvm.runtime.empty((max(1, spec.n_bytes),), "uint8")
        self.raw = np.from_dlpack(storage)
        self.raw[:] = 0
        self.tensor = storage._create_view(spec.shape, spec.dtype)

    def copy(self) -> _Array:
        other = _Array(self.spec)
        other.raw[:] = self.raw
        return other

    def fill_random(self, rng: np.random.Generator) -> None:
        dtype, shape = self.spec.dtype, self.spec.shape
        view = self.raw[: self.spec.n_bytes].view(_numpy_dtype(dtype)).reshape(shape)
        if dtype == "bfloat16":
            values = rng.uniform(-1, 1, shape).astype(np.float32)
            view[...] = (values.view(np.uint32) >> 16).astype(np.uint16)
        elif dtype.startswith("float"):
            view[...] = rng.uniform(-1, 1, shape)
        elif dtype in ("int8", "uint8"):
            view[...] = rng.integers(0 if dtype == "uint8" else -8, 8, shape)
        else:  # indices, masks and bools: 0 and 1 are legal wherever they are used
            view[...] = rng.integers(0, 2, shape)

    def values(self) -> np.ndarray:
        dtype = self.spec.dtype
        view = self.raw[: self.spec.n_bytes].view(_numpy_dtype(dtype))
        if dtype == "bfloat16":
            return (view.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return view.astype(np.float64) if dtype.startswith("float") else view.copy()


def _numpy_dtype(dtype: str) -> str:
    return {"bfloat16": "uint16", "bool": "uint8"}.get(dtype, dtype)


def largest_error(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """Largest error relative to the magnitude of the wanted output; inf if NaN/Inf differ."""
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        if not np.issubdtype(b.dtype, np.floating):
            worst = max(worst, 0.0 if np.array_equal(a, b) else np.inf)
            continue
        finite = np.isfinite(b)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return float("inf")
        if finite.any():
            scale = float(np.abs(b[finite]).max()) or 1.0
            error = float(np.abs(a[finite] - b[finite]).max()) / scale
            worst = max(worst, error if np.isfinite(error) else np.inf)
    return worst


def default_tolerance(specs: Sequence[ArgSpec]) -> float:
    """Loosest tolerance among the output dtypes; integers must be equal."""
    return max(TOLERANCE.get(spec.dtype, 0.0) for spec in specs if spec.is_output)


def time_kernel(
    call: Callable[..., Any], sets: Sequence[Sequence[Any]], best_s: float | None, limit_s: float
) -> tuple[list[float], bool]:
    """Time a kernel that has run once already.

    Returns
    -------
    samples_s
        Seconds per call, one value a sample.
    cut_short
        True when the first sample is over 1.5 × ``best_s``: no need to know it better.
    """
    first_s = _seconds(call, [sets[-1]])
    if best_s is not None and first_s > 1.5 * best_s:
        first_s = min(first_s, _seconds(call, [sets[0]]))
        if first_s > 1.5 * best_s:
            return [first_s], True
    rounds = max(1, round(SAMPLE_S / max(first_s, 1e-7)))
    order = itertools.cycle(sets)
    samples: list[float] = []
    deadline = time.perf_counter() + limit_s
    while len(samples) < MAX_SAMPLES:
        samples.append(_seconds(call, list(itertools.islice(order, rounds))))
        if len(samples) < MIN_SAMPLES:
            continue
        low, mid, high = np.percentile(samples, (25, 50, 75))
        if high - low < STEADY_SPREAD * mid or time.perf_counter() > deadline:
            break
    return samples, False


def _seconds(call: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> float:
    start = time.perf_counter()
    for arguments in sets:
        call(*arguments)
    return (time.perf_counter() - start) / len(sets)
