"""Tensor cores: the CUDA text runs on the emulator for awkward shapes; what compiles uses HMMA."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from tvm import te, tirx

from tvmfuse.codegen import compile_cuda
from tvmfuse.codegen import emulate as emulation
from tvmfuse.codegen.toolkits import find_toolkit
from tvmfuse.errors import TvmfuseError
from tvmfuse.hardware import resolve_target
from tvmfuse.schedules.anchor import Conv2d, Dense
from tvmfuse.schedules.cuda.binding import launches
from tvmfuse.schedules.cuda.fragments import FRAGMENTS, pass_config
from tvmfuse.schedules.cuda.gemm import gemm_conv2d, gemm_dense
from tvmfuse.schedules.cuda.tensor import FAMILY, TensorTemplate, on_tensor_cores, ranked
from tvmfuse.schedules.cuda.variants import variants_of
from tvmfuse.schedules.merge import Step, merged
from tvmfuse.verify.tolerances import TOLERANCES

T4, A100 = resolve_target("t4"), resolve_target("a100-40")
TARGETS = {"float16": T4, "bfloat16": A100}
HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
runs = pytest.mark.skipif(bool(emulation.missing()), reason=emulation.missing())
both = pytest.mark.parametrize("dtype", HALVES)

# (n, h, w, c, o), then what is odd about it
CONVS = {
    "1x1": ((1, 7, 7, 8, 16), {"k": 1}),
    "3x3 pad": ((1, 9, 9, 16, 24), {"pad": 1}),
    "7x7 stride": ((1, 23, 23, 3, 32), {"k": 7, "stride": 2, "pad": 3}),
    "one row": ((1, 1, 2, 24, 24), {"k": 1}),
    "batch 2": ((2, 6, 5, 8, 8), {"pad": 1}),
    "primes": ((1, 3, 3, 17, 37), {"k": 1}),
    "dilation": ((1, 11, 13, 8, 16), {"dilation": (2, 3), "pad": 2}),
    "asymmetric": ((1, 9, 8, 4, 17), {"pad": (0, 1, 2, 3), "stride": (2, 1)}),
}
DENSES = [((), 2, 20, 24), ((), 2, 8, 1), ((), 37, 13, 10), ((), 5, 40, 255), ((2, 3), 4, 8, 16)]


def mixed(anchor, dtype):
    return dataclasses.replace(anchor, dtype=dtype, result="float32")


def conv_of(kit, name, dtype):
    sizes, extra = CONVS[name]
    return mixed(kit.conv(*sizes, **extra), dtype)


def dense_of(sizes, dtype):
    return mixed(Dense(*sizes, "float32"), dtype)


def variant_of(anchor):
    made = gemm_conv2d if isinstance(anchor, Conv2d) else gemm_dense
    return made(anchor, FAMILY)


def kernel(variant, residual):
    """``(x, w, y)`` with float32 sums; or with bias, a residual stored as halves, and rounding."""
    product, half = variant.prim_func(), variant.anchor.dtype
    if not residual:
        return product
    shapes = [[int(e) for e in p.ty.shape] for p in product.params]
    y, b = (
        te.placeholder(s, "float32", name=n) for s, n in ((shapes[2], "y"), (shapes[2][-1:], "b"))
    )
    r = te.placeholder(shapes[2], half, name="r")

    def body(*i):
        value = y(*i) + b(i[-1]) + r(*i).astype("float32")
        return tirx.max(value, tirx.const(0, "float32")).astype(half)

    made = te.create_prim_func(
        [y, b, r, te.compute(y.shape, body, "rounded")], index_dtype_override="int64"
    )
    inputs, types = [*shapes[:2], shapes[2][-1:], shapes[2]], [half, half, "float32", half]
    return merged(inputs, types, [Step(product, (0, 1)), Step(made, (4, 2, 3))])


def check(kit, anchor, residual, hardware, tunable=False):
    """Scheduled kernels give the definition, within the half's table, and nothing is at fault."""
    variant = variant_of(anchor)
    func, kind = kernel(variant, residual), HALVES[anchor.dtype]
    rng = np.random.default_rng(0)
    plain = dataclasses.replace(anchor, dtype="float32", result="")
    x = rng.standard_normal(variant.input_shape).astype(kind)
    w = kit.weight_of(plain, rng).astype(kind)
    want = kit.definition(plain, x.astype("float32"), w.astype("float32"))
    inputs, allowed = [x, variant.pack(w)], 2e-5
    if residual:
        inputs += [rng.standard_normal(want.shape[-1]).astype("float32")]
        inputs += [rng.standard_normal(want.shape).astype(kind)]
        want = np.maximum(want + inputs[2] + inputs[3].astype("float64"), 0)
        allowed = TOLERANCES["kernel"][anchor.dtype]
    for schedule in TensorTemplate().apply(func, hardware, tunable)[:3]:
        scheduled = schedule.mod["main"]
        assert launches(scheduled, hardware.gpu)
        out = np.full(want.shape, np.nan, kind if residual else "float32")
        faults = emulation.emulate(scheduled, hardware.target_json, [*inputs, out])
        assert not faults, faults
        assert np.abs(out.astype("float64") - want).max() <= allowed * np.abs(want).max()


@runs
@both
@pytest.mark.parametrize("name", CONVS)
def test_convolution(kit, name, dtype):
    check(kit, conv_of(kit, name, dtype), True, TARGETS[dtype])


@runs
@both
@pytest.mark.parametrize("sizes", DENSES, ids=str)
def test_product(kit, sizes, dtype):
    check(kit, dense_of(sizes, dtype), False, TARGETS[dtype])
    check(kit, dense_of(sizes, dtype), True, TARGETS[dtype])


@runs
def test_several_structures_are_right(kit):
    check(kit, conv_of(kit, "3x3 pad", "float16"), True, T4, tunable=True)


def test_which_devices_take_which_type(kit):
    half, brain = conv_of(kit, "1x1", "float16"), conv_of(kit, "1x1", "bfloat16")
    nano = resolve_target("jetson-nano")
    assert on_tensor_cores(half, T4.gpu) and on_tensor_cores(brain, A100.gpu)
    assert not on_tensor_cores(brain, T4.gpu) and not on_tensor_cores(half, nano.gpu)
    assert not on_tensor_cores(kit.conv(1, 7, 7, 8, 16), A100.gpu)


def test_what_it_does_not_take_is_widened(kit):
    one_row = dense_of(((), 1, 20, 24), "float16")
    groups = mixed(kit.conv(1, 4, 4, 8, 8, groups=2), "float16")
    for anchor, name in ((one_row, "direct"), (groups, "direct_tiles")):
        (variant,) = variants_of(anchor, T4)
        assert (
            variant.name == name and TensorTemplate().apply(variant.prim_func(), T4, False) is None
        )
    (brain,) = variants_of(conv_of(kit, "1x1", "bfloat16"), T4)
    assert TensorTemplate().apply(brain.prim_func(), T4, False) is None


def test_tiles_fit_the_device():
    for t in ranked(784, 128, 1152, T4.gpu):
        assert t.shared_bytes <= T4.gpu.shared_static_bytes and t.warps * 32 <= 256


def test_storage_is_kept_apart_for_fragments_alone(kit):
    func = kernel(variant_of(conv_of(kit, "1x1", "float16")), False)
    scheduled = TensorTemplate().apply(func, T4, False)[0].mod["main"]
    assert FRAGMENTS in scheduled.attrs and pass_config([scheduled])
    assert pass_config([func]) == {}


@pytest.mark.parametrize("target", ["t4", "a100-40", "h200"])
@pytest.mark.parametrize("sizes", [(56, 64, 64, 3), (14, 256, 256, 3), (28, 128, 512, 1)], ids=str)
def test_default_kernels_compile_without_spills(kit, target, sizes):
    hardware = resolve_target(target)
    size, channels, outs, window = sizes
    conv = mixed(kit.conv(1, size, size, channels, outs, k=window, pad=window // 2), "float16")
    schedule = TensorTemplate().apply(kernel(variant_of(conv), True), hardware, False)[0]
    assert launches(schedule.mod["main"], hardware.gpu)
    text = emulation.cuda_text(schedule.mod["main"], hardware.target_json)
    assert "wmma::mma_sync" in text.source
    try:
        find_toolkit(hardware.gpu.cc)
    except TvmfuseError as error:
        pytest.skip(str(error))
    (used,) = compile_cuda(text.source, hardware.gpu.arch, hardware.gpu.cc).kernels
    assert used.spill_bytes == 0 and used.registers <= 255
    assert used.shared_bytes <= hardware.gpu.shared_static_bytes
