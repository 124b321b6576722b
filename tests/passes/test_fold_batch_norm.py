"""Batch norm is folded where it can be, and left or made an affine map where it cannot."""

import numpy as np
import pytest
import torch
from torch import nn
from tvm import relax

from tvmfuse.passes.fold_batch_norm import FoldBatchNorm
from tvmfuse.passes.fold_constants import FoldConstants
from tvmfuse.passes.name_variables import NameVariables


def folded(mod):
    """The pass where the pipeline has it: behind the folding of a bias's reshape."""
    mod = NameVariables()(relax.transform.CanonicalizeBindings()(FoldConstants()(mod)))
    return relax.transform.DeadCodeElimination(["main"])(FoldBatchNorm()(mod))


def sequence(*layers):
    torch.manual_seed(0)
    return nn.Sequential(*layers)


FOLDS = {
    "without bias": lambda: sequence(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)),
    "with bias": lambda: sequence(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)),
    "grouped": lambda: sequence(nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)),
    "depthwise": lambda: sequence(nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4)),
    "multiplier 2": lambda: sequence(nn.Conv2d(4, 8, 3, groups=4), nn.BatchNorm2d(8)),
    "no affine": lambda: sequence(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False)),
    "large epsilon": lambda: sequence(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8, eps=0.5)),
    "twice": lambda: sequence(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)
    ),
}


@pytest.mark.parametrize("name", FOLDS)
def test_folds_into_the_convolution(kit, name):
    module = kit.shaken(FOLDS[name]())
    channels = module[0].in_channels
    x = torch.randn(2, channels, 7, 8)
    before = kit.imported(module, x)
    assert kit.count(before, "nn.batch_norm") > 0
    after = folded(before)
    convs = kit.count(after, "nn.conv2d")
    assert kit.count(after, "nn.batch_norm") == 0
    assert kit.count(after, "multiply") == 0 and kit.count(after, "add") == convs
    kit.assert_same(kit.run(after, x.numpy()), kit.eager(module, x))


class ReadTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


class TwoNorms(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, bias=False)
        self.a, self.b = nn.BatchNorm2d(8), nn.BatchNorm2d(8)

    def forward(self, x):
        y = self.conv(x)
        return self.a(y), self.b(y)


class ConvIsOutput(TwoNorms):
    def forward(self, x):
        y = self.conv(x)
        return self.a(y), y


class SameTwice(TwoNorms):
    """One convolution and one norm, called on two inputs."""

    def forward(self, x):
        return self.a(self.conv(x)), self.a(self.conv(x + 1))


@pytest.mark.parametrize("make", [ReadTwice, TwoNorms, ConvIsOutput])
def test_convolution_read_twice_keeps_its_weight(kit, make):
    module = kit.shaken(make())
    x = torch.randn(1, 3, 6, 6)
    before = kit.imported(module, x)
    norms = kit.count(before, "nn.batch_norm")
    after = folded(before)
    assert kit.count(after, "nn.batch_norm") == 0
    assert kit.count(after, "multiply") == norms  # scale and shift behind the convolution
    kit.assert_same(kit.run(after, x.numpy()), kit.eager(module, x))


def test_shared_layers(kit):
    module = kit.shaken(SameTwice())
    x = torch.randn(1, 3, 6, 6)
    after = folded(kit.imported(module, x))
    assert kit.count(after, "nn.batch_norm") == kit.count(after, "multiply") == 0
    kit.assert_same(kit.run(after, x.numpy()), kit.eager(module, x))


@pytest.mark.parametrize("affine", [True, False])
def test_norm_in_front_becomes_scale_and_shift(kit, affine):
    module = kit.shaken(
        sequence(nn.BatchNorm2d(3, affine=affine), nn.ReLU(), nn.Conv2d(3, 8, 3, bias=False))
    )
    x = torch.randn(1, 3, 6, 6)
    after = folded(kit.imported(module, x))
    assert kit.ops(after)[:3] == ["multiply", "add", "nn.relu"]
    kit.assert_same(kit.run(after, x.numpy()), kit.eager(module, x))


def test_norm_behind_a_bias_of_another_shape(kit):
    class Mapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
            self.register_buffer("bias", torch.randn(1, 8, 4, 4))

        def forward(self, x):
            return self.norm(self.conv(x) + self.bias)

    module = kit.shaken(Mapped())
    x = torch.randn(1, 3, 6, 6)
    after = folded(kit.imported(module, x))
    assert kit.count(after, "multiply") == 1
    kit.assert_same(kit.run(after, x.numpy()), kit.eager(module, x))


def test_bias_along_the_width_is_no_channel_bias(kit):
    class Widthwise(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
            self.register_buffer("bias", torch.randn(4))

        def forward(self, x):
            return self.norm(self.conv(x) + self.bias)  # broadcast along W, which is 4 as well

    module = kit.shaken(Widthwise())
    x = torch.randn(1, 3, 6, 6)
    kit.assert_same(kit.run(folded(kit.imported(module, x)), x.numpy()), kit.eager(module, x))


def norm_call(training=False, weight=None):
    rng = np.random.default_rng(0)
    stats = [relax.const(rng.random(4).astype("float32") + 0.5) for _ in range(4)]

    def body(builder, x, *rest):
        w = rest[0] if rest else relax.const(rng.standard_normal((4, 3, 1, 1)).astype("float32"))
        conv = builder.emit(relax.op.nn.conv2d(x, w))
        norm = builder.emit(relax.op.nn.batch_norm(conv, *stats, axis=1, training=training))
        return builder.emit(relax.TupleGetItem(norm, 0))

    return body


def test_training_mode_is_left(kit):
    mod = kit.written(norm_call(training=True), ((1, 3, 4, 4), "float32"))
    after = folded(mod)
    assert kit.count(after, "nn.batch_norm") == 1 and kit.count(after, "multiply") == 0


def test_weight_that_is_an_input_is_left(kit):
    types = ((1, 3, 4, 4), "float32"), ((4, 3, 1, 1), "float32")
    after = folded(kit.written(norm_call(), *types))
    assert kit.count(after, "nn.batch_norm") == 0
    assert kit.count(after, "multiply") == 1  # not in the weight, which is not known
    rng = np.random.default_rng(1)
    data = [rng.standard_normal(s).astype(d) for s, d in types]
    kit.assert_same(kit.run(after, *data), kit.run(kit.written(norm_call(), *types), *data))
