"""A small machine and small kernels for the tuning tests."""

from __future__ import annotations

import os
from typing import Any

import pytest
import tvm
from tvm import te
from tvmfuse.hardware.record import Hardware


@pytest.fixture(scope="session")
def machine() -> Hardware:
    """A generic x86 with the cores that are here."""
    return Hardware(
        name="llvm",
        key="test",
        kind="llvm",
        target_json={"kind": "llvm", "num-cores": os.cpu_count() or 1},
        features=(),
        cores=os.cpu_count() or 1,
        vector_bytes=32,
        vector_registers=16,
        l1d_bytes=32 << 10,
        l2_bytes=1 << 20,
        l3_bytes=0,
    )


def matmul(m: int = 16, n: int = 32, k: int = 16) -> Any:
    """Unscheduled matmul with relu, as a PrimFunc called main."""
    a = te.placeholder((m, k), name="a")
    b = te.placeholder((k, n), name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")
    zero = tvm.tirx.const(0.0, "float32")
    d = te.compute((m, n), lambda i, j: tvm.tirx.max(c[i, j], zero), name="d")
    return te.create_prim_func([a, b, d]).with_attr("global_symbol", "main")


@pytest.fixture(scope="session", name="matmul")
def matmul_maker() -> Any:
    """The function ``matmul``."""
    return matmul
