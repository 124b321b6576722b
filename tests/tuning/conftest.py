"""A small machine and small kernels for the tuning tests."""

from __future__ import annotations

import os
from typing import Any

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmfuse.hardware.record import Hardware
from tvmfuse.tuning.search import Templates
from tvmfuse.tuning.task import as_main


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


def _template(tunable: bool) -> Any:
    """A stand-in for the schedule templates: a matmul with two register tile choices."""

    def apply(func: Any, hardware: Hardware) -> Any:
        schedule = Schedule(as_main(func))
        c, d = schedule.get_sblock("c"), schedule.get_sblock("d")
        tiles: list[Any] = [2, 8]
        if tunable:
            tiles = [
                schedule.sample_categorical(options, [1 / len(options)] * len(options), decision=0)
                for options in ([2, 4, 8], [4, 8, 16])
            ]
        i, j = schedule.get_loops(d)
        i0, i1 = schedule.split(i, [None, tiles[0]])
        j0, j1 = schedule.split(j, [None, tiles[1]])
        schedule.reorder(i0, j0, i1, j1)
        schedule.parallel(i0)
        schedule.compute_at(c, j0)
        _, _, ci, cj, k = schedule.get_loops(c)
        schedule.reorder(k, ci, cj)
        schedule.vectorize(cj)
        schedule.vectorize(j1)
        schedule.decompose_reduction(c, k)
        return [schedule] if tunable else schedule

    return apply


@pytest.fixture(scope="session")
def templates() -> Templates:
    """Stand-in templates for ``matmul``."""
    return Templates(_template(False), _template(True))
