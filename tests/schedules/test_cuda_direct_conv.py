"""Depthwise and grouped convolutions for GPUs: tiles on the emulator, and what they take."""

import dataclasses
import math

import numpy as np
import pytest

from tvmfuse.codegen import emulate as emulation
from tvmfuse.codegen.compiler import compile_cuda
from tvmfuse.codegen.toolkits import find_toolkit
from tvmfuse.errors import TvmfuseError
from tvmfuse.hardware import resolve_target
from tvmfuse.schedules.cuda import direct_conv as mine
from tvmfuse.schedules.cuda.binding import launches
from tvmfuse.schedules.cuda.variants import variants_of
from tvmfuse.verify.tolerances import TOLERANCES

T4, H200 = resolve_target("t4"), resolve_target("h200")
runs = pytest.mark.skipif(bool(emulation.missing()), reason=emulation.missing())

CONVS = {
    "depthwise": ((1, 9, 11, 8, 8), {"groups": 8, "pad": 1}),
    "stride": ((1, 12, 13, 24, 24), {"groups": 24, "pad": 1, "stride": 2}),
    "5x5, batch 2": ((2, 7, 7, 6, 6), {"groups": 6, "pad": 2, "k": 5}),
    "groups": ((1, 9, 9, 16, 32), {"groups": 4, "pad": 1}),
    "odd groups": ((1, 5, 5, 4, 6), {"groups": 2, "pad": (0, 1, 1, 0)}),
    "two outputs a channel": ((1, 8, 8, 10, 20), {"groups": 10, "pad": 1}),
    "one pixel": ((1, 1, 1, 7, 7), {"groups": 7, "k": 1}),
    "a row": ((1, 5, 14, 5, 5), {"groups": 5, "k": (1, 7), "pad": (0, 3, 0, 3)}),
    "dilation": ((1, 9, 10, 4, 4), {"groups": 4, "dilation": (2, 3), "pad": 2}),
    "many columns": ((1, 3, 37, 24, 24), {"groups": 24, "pad": 1}),
}


@runs
@pytest.mark.parametrize("tile", [(1, 2), (4, 2), (8, 1)], ids=str)
@pytest.mark.parametrize("name", CONVS)
def test_every_tile(kit, monkeypatch, name, tile):
    sizes, extra = CONVS[name]
    conv = kit.conv(*sizes, **extra)
    pixels, channels = tile[0], math.gcd(tile[1], conv.O if conv.O == conv.C else 2)
    channels = channels if (conv.O // conv.groups) % channels == 0 or conv.O == conv.C else 1
    channels = math.gcd(channels, conv.O)
    monkeypatch.setattr(mine, "best_tile", lambda a, gpu: mine.Tile(pixels, channels))
    case = kit.Case(mine.direct_conv(conv, T4), "residual")
    template, got = kit.emulated(case.func, T4, case.inputs, case.want.shape)
    assert template == "cuda.direct_conv"
    kit.assert_close(got, case.want, case.variant.rtol)


@runs
@pytest.mark.parametrize("groups", [2, 8])
def test_halves_are_widened_where_they_are_read(kit, groups):
    conv = kit.conv(1, 6, 7, 8, 8, groups=groups, pad=1)
    (variant,) = variants_of(dataclasses.replace(conv, dtype="float16", result="float32"), T4)
    case = kit.Case(mine.direct_conv(conv, T4), "")
    x, w = (part.astype("float16") for part in case.inputs)
    template, got = kit.emulated(variant.prim_func(), T4, [x, w], case.want.shape)
    assert template == "cuda.direct_conv"
    kit.assert_close(got, case.want, TOLERANCES["kernel"]["float16"])


@runs
@pytest.mark.parametrize("target", ["t4", "jetson-nano"])
@pytest.mark.parametrize("epilogue", ["", "bias"])
def test_the_default(kit, target, epilogue):
    hardware = resolve_target(target)
    (variant,) = variants_of(kit.conv(1, 14, 15, 24, 24, groups=24, pad=1), hardware)
    case = kit.Case(variant, epilogue)
    template, got = kit.emulated(case.func, hardware, case.inputs, case.want.shape)
    assert template == "cuda.direct_conv"
    kit.assert_close(got, case.want, case.variant.rtol)


def test_what_it_takes(kit):
    assert mine.applicable(kit.conv(1, 4, 4, 8, 8, groups=2))
    assert not mine.applicable(kit.conv(1, 4, 4, 8, 8))
    assert not mine.applicable(kit.conv(1, 4, 4, 8, 8, groups=8, dtype="float16"))
    plain = kit.kernel(variants_of(kit.conv(1, 4, 4, 8, 8), T4)[0])
    assert mine.DirectConvTemplate().apply(plain, T4, False) is None


def test_small_images_take_small_tiles_and_large_ones_large(kit):
    small = kit.conv(1, 7, 7, 960, 960, groups=960, pad=1)
    large = kit.conv(8, 112, 112, 96, 96, groups=96, pad=1)
    few, many = mine.best_tile(small, H200.gpu), mine.best_tile(large, T4.gpu)
    assert few.pixels * few.channels < many.pixels * many.channels
    assert many.channels == 4 and many.pixels >= 2


@pytest.mark.parametrize("target", ["t4", "a100", "h200", "jetson-orin"])
@pytest.mark.parametrize(
    ("sizes", "extra"),
    [
        ((1, 112, 112, 96, 96), {"groups": 96, "pad": 1, "stride": 2}),
        ((1, 14, 14, 576, 576), {"groups": 576, "pad": 1}),
        ((1, 28, 28, 240, 240), {"groups": 240, "pad": 2, "k": 5}),
        ((1, 56, 56, 96, 96), {"groups": 96, "pad": 3, "k": 7}),
        ((1, 56, 56, 48, 48), {"groups": 3, "pad": 1, "stride": 2}),
        ((1, 14, 14, 208, 208), {"groups": 26, "pad": 1}),
    ],
    ids=str,
)
def test_default_kernels_compile_without_spills(kit, target, sizes, extra):
    hardware = resolve_target(target)
    func = kit.kernel(mine.direct_conv(kit.conv(*sizes, **extra), hardware), "residual")
    scheduled = mine.DirectConvTemplate().apply(func, hardware, False)[0].mod["main"]
    fits = launches(scheduled, hardware.gpu)
    assert fits, fits.reason
    text = emulation.cuda_text(scheduled, hardware.target_json)
    assert len(text.launches) == 1
    try:
        find_toolkit(hardware.gpu.cc)
    except TvmfuseError as error:
        pytest.skip(str(error))
    (kernel,) = compile_cuda(text.source, hardware.gpu.arch, hardware.gpu.cc).kernels
    assert kernel.spill_bytes == kernel.stack_bytes == kernel.shared_bytes == 0
    assert kernel.registers <= 168
    assert np.prod(text.launches[0].block) <= 256
