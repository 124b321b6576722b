"""Small matmul tasks, and logs with records of them."""

import dataclasses
import sys

import pytest

from tvmfuse.database import TuningLog
from tvmfuse.hardware import Hardware

HARDWARE = Hardware(
    name="llvm",
    key="x86-test",
    kind="llvm",
    target_json={"kind": "llvm", "num-cores": 2},
    features=("avx2",),
    cores=2,
    vector_bytes=32,
    vector_registers=16,
    l1d_bytes=32768,
    l2_bytes=1 << 20,
    l3_bytes=0,
)


def other_hardware():
    return dataclasses.replace(HARDWARE, key="arm-test")


def matmul(n=16):
    import tvm
    from tvm import te

    a, b = (te.placeholder((n, n), name=name) for name in "AB")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def trace(mod, factor):
    from tvm.s_tir import Schedule

    schedule = Schedule(mod)
    block = schedule.get_sblock("C")
    outer, _ = schedule.split(schedule.get_loops(block)[0], [None, factor])
    schedule.parallel(outer)
    return schedule.trace


def fill(folder, sizes=(16,), per_task=3, hardware=HARDWARE, **options):
    """Commit ``per_task`` records for each size; the one with the largest factor is fastest."""
    with TuningLog.open(folder, hardware, True, **options) as log:
        for n in sizes:
            for i in range(per_task):
                log.commit(matmul(n), trace(matmul(n), 2**i), [1e-3 / (i + 1)])
    return folder


@pytest.fixture
def tasks():
    """This file's functions."""
    return sys.modules[__name__]
