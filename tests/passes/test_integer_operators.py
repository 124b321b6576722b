"""Quantised models: which kernels read bytes, and that they compute what the model says."""

import numpy as np
import pytest
import torch
import tvm_ffi
from torch import nn

import tvmfuse
from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.planner import make_plan
from tvmfuse.graph import bindings, dtype_of
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import lower, lowering, optional_passes

HERE = resolve_target("llvm", 2)
_OPS = torch.ops.quantized_decomposed


def _q(x, scale, zero=0, dtype=torch.uint8):
    limits = torch.iinfo(dtype)
    return _OPS.quantize_per_tensor(x, scale, zero, limits.min, limits.max, dtype)


def _dq(q, scale, zero=0):
    limits = torch.iinfo(q.dtype)
    return _OPS.dequantize_per_tensor(q, scale, zero, limits.min, limits.max, q.dtype)


class Weight(nn.Module):
    """A weight in bytes with a scale for each output channel."""

    def __init__(self, *shape, low=-128, dtype=torch.int8, zero=0):
        super().__init__()
        generator = torch.Generator().manual_seed(sum(shape))
        drawn = torch.randint(low, low + 256, shape, generator=generator)
        self.register_buffer("w", drawn.to(dtype))
        self.register_buffer("s", torch.rand(shape[0], generator=generator) * 0.01 + 0.001)
        self.register_buffer("z", torch.full(shape[:1], zero))

    def forward(self):
        limits = torch.iinfo(self.w.dtype)
        return _OPS.dequantize_per_channel(
            self.w, self.s, self.z, 0, limits.min, limits.max, self.w.dtype
        )


class Block(nn.Module):
    """Two convolutions with a residual, a pooling and a product; ``dtype`` of activations."""

    def __init__(self, dtype=torch.uint8):
        super().__init__()
        self.dtype = dtype
        self.z = {torch.uint8: (117, 0, 128), torch.int8: (-11, -128, 0)}[dtype]
        self.a, self.b = Weight(16, 3, 3, 3), Weight(16, 16, 3, 3)
        self.d, self.f = Weight(16, 1, 3, 3), Weight(10, 16)
        self.bias = nn.Parameter(torch.randn(16, generator=torch.Generator().manual_seed(0)))

    def _through(self, x, scale, zero):
        return _dq(_q(x, scale, zero, self.dtype), scale, zero)

    def forward(self, x):
        conv = nn.functional.conv2d
        x = self._through(x, 0.03, self.z[0])
        x = self._through(torch.relu(conv(x, self.a(), self.bias, padding=1)), 0.04, self.z[1])
        y = conv(x, self.b(), self.bias, padding=1)
        x = self._through(torch.relu(x + y), 0.05, self.z[1])
        x = nn.functional.max_pool2d(x, 2)
        x = self._through(conv(x, self.d(), self.bias, padding=1, groups=16), 0.06, self.z[2])
        x = self._through(x.mean((2, 3)), 0.02, self.z[2])
        return _q(nn.functional.linear(x, self.f()), 0.05, 128)


def _lowered(module, *inputs):
    return lower(import_module(module.eval(), inputs), HERE)


def _groups(lowered):
    return [group.ops for group in make_plan(lowered, HERE).groups]


def _compiled(module, *inputs):
    return tvmfuse.compile(module.eval(), inputs, trials=0, no_log=True, measure="none")


def _steps_apart(module, *inputs):
    """Largest difference of two quantised results in steps."""
    with torch.no_grad():
        want = module(*inputs)
    got = torch.from_dlpack(_compiled(module, *inputs)(*inputs))
    assert got.dtype == want.dtype == torch.uint8
    return int((got.int() - want.int()).abs().max())


def _image(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_a_block_is_what_the_model_says(dtype):
    assert _steps_apart(Block(dtype), _image(1, 3, 12, 12)) <= 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_no_kernel_between_two_integer_ones(dtype):
    lowered = _lowered(Block(dtype), _image(1, 3, 12, 12))
    groups = _groups(lowered)
    assert groups[1] == ("conv2d", "cast", "multiply", "add", "relu", "quantize")
    assert groups[2] == ("conv2d", "cast", "multiply", "add", "add", "relu", "quantize")
    assert groups[3] == ("max_pool2d",)
    assert len(groups) == 7  # and the input's, the depthwise one, the mean and the product
    stored = {b.var.name: dtype_of(b.var) for b in bindings(lowered.module["main"])}
    written = [g.members[-1] for g in make_plan(lowered, HERE).groups]
    assert {stored[name] for name in written} == {"uint8"}


class Concat(nn.Module):
    def __init__(self, scales):
        super().__init__()
        self.scales, self.w, self.v = scales, Weight(8, 4, 1, 1), Weight(8, 16, 1, 1)

    def forward(self, x):
        x = _dq(_q(x, 0.02, 128), 0.02, 128)
        y = nn.functional.conv2d(x, self.w())
        one, other = self.scales
        a = _dq(_q(torch.relu(y), one), one)
        b = _dq(_q(torch.relu(-y), other), other)
        both = torch.cat([a, b], 1)
        return _q(nn.functional.conv2d(_dq(_q(both, one), one), self.v()), 0.1, 128)


@pytest.mark.parametrize("scales", [(0.02, 0.02), (0.02, 0.05)])
def test_concatenations_stay_in_bytes(scales):
    module = Concat(scales)
    lowered = _lowered(module, _image(1, 4, 6, 6))
    types = [dtype_of(b.var) for b in bindings(lowered.module["main"]) if "concat" in str(b.value)]
    assert types == ["uint8"]
    assert _steps_apart(module, _image(1, 4, 6, 6)) <= 1


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.v = Weight(16, 4, 3, 3), Weight(8, 16, 1, 1)

    def forward(self, x):
        x = _dq(_q(x, 0.02, 100), 0.02, 100)
        x = nn.functional.max_pool2d(nn.functional.conv2d(x, self.w()), 3, 2, 1)
        return _q(nn.functional.conv2d(_dq(_q(x, 0.05, 90), 0.05, 90), self.v()), 0.2, 128)


def test_quantising_goes_before_pooling():
    groups = _groups(_lowered(Pooled(), _image(1, 4, 11, 11)))
    assert groups[1][-1] == "quantize" and groups[2] == ("max_pool2d",)
    assert _steps_apart(Pooled(), _image(1, 4, 11, 11)) <= 1


class Product(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.f = weight

    def forward(self, x):
        x = _dq(_q(x, 0.02, 33), 0.02, 33)
        return _q(nn.functional.linear(x, self.f()), 0.08, 128)


@pytest.mark.parametrize("shape", [(1, 33), (2, 5, 64), (67, 20)])
def test_products(shape):
    assert _steps_apart(Product(Weight(24, shape[-1])), _image(*shape)) <= 1


def test_unsigned_weights_are_centred():
    module = Product(Weight(16, 32, low=0, dtype=torch.uint8, zero=128))
    assert any("dense" in g for g in _groups(_lowered(module, _image(3, 32))))
    assert _steps_apart(module, _image(3, 32)) <= 1


def test_weights_that_are_no_bytes_are_floats():
    module = Product(Weight(16, 32, low=0, dtype=torch.uint8, zero=3))
    lowered = _lowered(module, _image(3, 32))
    dense = [b.var for b in bindings(lowered.module["main"]) if "(dense" in str(b.value)]
    assert [dtype_of(v) for v in dense] == ["float32"]
    assert _steps_apart(module, _image(3, 32)) <= 1


class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = Weight(8, 2, 3, 3)

    def forward(self, x):
        x = _dq(_q(x, 0.02, 100), 0.02, 100)
        return _q(nn.functional.conv2d(x, self.w(), groups=2), 0.1, 128)


def test_narrow_groups_are_floats():
    lowered = _lowered(Narrow(), _image(1, 4, 8, 8))
    convs = [b.var for b in bindings(lowered.module["main"]) if "(conv2d" in str(b.value)]
    assert [dtype_of(v) for v in convs] == ["float32"]
    assert _steps_apart(Narrow(), _image(1, 4, 8, 8)) <= 1


def test_extreme_values_and_nan_become_ends():
    module = Product(Weight(8, 16))
    x = _image(4, 16)
    x[0], x[1], x[2, :3] = 1e30, -1e30, float("inf")
    assert _steps_apart(module, x) <= 1


def test_nothing_changes_in_a_model_of_floats():
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    workload = import_module(module.eval(), (_image(1, 3, 9, 9),))
    ours = [p for p in optional_passes(HERE) if p.endswith(("IntegerOperators", "LowerIntegers"))]
    assert len(ours) == 2
    without = lowering(workload, HERE, leave_out=ours)[0].module
    assert tvm_ffi.structural_equal(lower(workload, HERE).module, without)


def test_a_gpu_computes_in_floats():
    module = import_module(Block().eval(), (_image(1, 3, 12, 12),))
    lowered = lower(module, resolve_target("t4"))
    convs = [b.var for b in bindings(lowered.module["main"]) if "(conv2d" in str(b.value)]
    assert {dtype_of(v) for v in convs} == {"float32"}


def test_weights_are_stored_in_bytes(tmp_path):
    module = Product(Weight(256, 512))
    folder = _compiled(module, _image(4, 512)).save(tmp_path / "artifact")
    size = sum(f.stat().st_size for f in folder.glob("*.safetensors"))
    assert size < 0.27 * 4 * 256 * 512
    assert np.isfinite(size)
