"""Hardware: a frozen record of limits, constructible without the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmfuse.hardware.gpus import Gpu


@dataclass(frozen=True)
class Hardware:
    """What the planner, the templates and the search may rely on.

    Parameters
    ----------
    name
        The target as the user wrote it, e.g. ``"llvm"``.
    key
        Name of its folder in ``tuning_logs/``; equal keys share records.
    kind
        TVM target kind: ``"llvm"`` or ``"cuda"``.
    target_json
        The TVM target as plain data (CLI strings are gone from TVM).
    features
        CPU feature flags as Linux names them (``avx512f`` …), sorted.
    cores
        Threads a kernel may use.
    vector_bytes
        Width of one vector register.
    vector_registers
        How many vector registers there are.
    l1d_bytes, l2_bytes, l3_bytes
        Cache sizes; L1 and L2 per core, L3 shared.
    gpu
        The device, of kind ``"cuda"``; the fields about a CPU then describe its host.
    assumed
        Why a device was assumed that nobody named; empty otherwise.
    """

    name: str
    key: str
    kind: str
    target_json: dict[str, Any]
    features: tuple[str, ...]
    cores: int
    vector_bytes: int
    vector_registers: int
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    gpu: Gpu | None = None
    assumed: str = ""

    def __post_init__(self) -> None:
        for field in ("cores", "vector_bytes", "vector_registers", "l1d_bytes", "l2_bytes"):
            if getattr(self, field) < 1:
                raise ValueError(f"Hardware.{field} must be positive, got {getattr(self, field)}")
        if (self.kind == "cuda") != (self.gpu is not None):
            raise ValueError(f"Hardware of kind {self.kind!r} with gpu={self.gpu!r}")

    def lanes(self, dtype_bytes: int = 4) -> int:
        """Elements of ``dtype_bytes`` each that one vector register holds."""
        return self.vector_bytes // dtype_bytes
