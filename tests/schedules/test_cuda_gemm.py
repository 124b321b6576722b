"""The GEMM template on shapes that fill no tile: executed on this CPU, and compiled for GPUs."""

import numpy as np
import pytest

from tvmfuse.codegen import emulate as emulation
from tvmfuse.codegen.compiler import compile_cuda
from tvmfuse.codegen.toolkits import find_toolkit
from tvmfuse.errors import TvmfuseError
from tvmfuse.hardware import resolve_target
from tvmfuse.schedules.anchor import Dense
from tvmfuse.schedules.cuda.binding import launches
from tvmfuse.schedules.cuda.gemm import (
    TILES,
    GemmTemplate,
    applicable,
    best_tile,
    gemm_conv2d,
    gemm_dense,
)

TARGETS = ("t4", "a100-40", "h200")
T4 = resolve_target("t4")
runs = pytest.mark.skipif(bool(emulation.missing()), reason=emulation.missing())

# (n, h, w, c, o), then what is odd about it
CONVS = {
    "1x1": ((1, 7, 7, 8, 16), {"k": 1}),
    "3x3 pad": ((1, 9, 9, 5, 16), {"pad": 1}),
    "7x7 stride": ((1, 23, 23, 3, 32), {"k": 7, "stride": 2, "pad": 3}),
    "one row": ((1, 1, 2, 24, 24), {"k": 1}),
    "batch 2": ((2, 6, 5, 4, 8), {"pad": 1}),
    "255 channels": ((1, 3, 3, 16, 255), {"k": 1}),
    "dilation": ((1, 11, 13, 4, 16), {"dilation": (2, 3), "pad": 2}),
    "asymmetric": ((1, 9, 8, 4, 17), {"pad": (0, 1, 2, 3), "stride": (2, 1)}),
}
DENSES = [
    Dense((), 2, 20, 24, "float32"),
    Dense((), 2, 1, 1, "float32"),
    Dense((), 37, 13, 10, "float32"),
    Dense((), 5, 7, 255, "float32"),
    Dense((2, 3), 4, 8, 16, "float32"),
]


def check(case, schedule, hardware=T4):
    """The scheduled kernel gives the definition, and nothing is at fault."""
    func = schedule.mod["main"]
    assert launches(func, hardware.gpu)
    out = np.full(case.want.shape, np.nan, "float32")
    faults = emulation.emulate(func, hardware.target_json, [*case.inputs, out])
    assert not faults, faults
    assert np.abs(out - case.want).max() <= case.variant.rtol * np.abs(case.want).max()


@runs
@pytest.mark.parametrize("name", CONVS)
def test_convolution(kit, name):
    sizes, extra = CONVS[name]
    case = kit.Case(gemm_conv2d(kit.conv(*sizes, **extra)), "residual")
    check(case, GemmTemplate().apply(case.func, T4, False)[0])


@runs
@pytest.mark.parametrize("epilogue", ["", "bias"])
@pytest.mark.parametrize("product", DENSES, ids=str)
def test_product(kit, product, epilogue):
    case = kit.Case(gemm_dense(product), epilogue)
    check(case, GemmTemplate().apply(case.func, T4, False)[0])


@runs
def test_every_structure_is_right(kit):
    case = kit.Case(gemm_conv2d(kit.conv(1, 9, 9, 8, 40, pad=1)), "bias")
    found = GemmTemplate().apply(case.func, T4, True)
    assert len(found) == 8
    for schedule in found:
        check(case, schedule)


def test_another_kernel_is_refused(kit):
    from tvmfuse.schedules.cuda.variants import dense

    case = kit.Case(dense(DENSES[2]))
    assert GemmTemplate().apply(case.func, T4, False) is None


def test_what_it_does_not_take(kit):
    assert applicable(DENSES[2]) and applicable(kit.conv(1, 4, 4, 8, 8))
    assert not applicable(Dense((), 1, 20, 24, "float32"))
    assert not applicable(kit.conv(1, 4, 4, 8, 8, groups=2))
    assert not applicable(kit.conv(1, 1, 1, 8, 8, k=1))


def test_few_rows_take_few_rows_of_a_tile():
    assert best_tile(1, 1000, T4.gpu).bm == min(t.bm for t in TILES)
    assert best_tile(8192, 8192, T4.gpu).bm >= 64


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", [(56, 64, 64, 3), (14, 256, 256, 3), (28, 128, 512, 1)], ids=str)
def test_default_kernels_compile_without_spills(kit, target, sizes):
    hardware = resolve_target(target)
    size, channels, outs, window = sizes
    conv = kit.conv(1, size, size, channels, outs, k=window, pad=window // 2)
    func = kit.kernel(gemm_conv2d(conv), "residual")
    schedule = GemmTemplate().apply(func, hardware, False)[0]
    assert launches(schedule.mod["main"], hardware.gpu)
    text = emulation.cuda_text(schedule.mod["main"], hardware.target_json)
    try:
        find_toolkit(hardware.gpu.cc)
    except TvmfuseError as error:
        pytest.skip(str(error))
    (kernel,) = compile_cuda(text.source, hardware.gpu.arch, hardware.gpu.cc).kernels
    assert kernel.spill_bytes == 0 and kernel.registers <= 255
    assert kernel.shared_bytes <= hardware.gpu.shared_static_bytes
