"""The pipeline down to kernels: which operators become anchors, and how many kernels are left."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from tvm import relax

from tvmfuse.passes.lower_anchors import legalize_map
from tvmfuse.passes.name_variables import NameVariables
from tvmfuse.passes.pipeline import lower
from tvmfuse.passes.relax_tools import array_of, bindings, count_uses
from tvmfuse.schedules.anchor import ATTR, Conv2d, Dense, from_text


def anchors(mod):
    """Anchor records of the kernels that ``main`` calls, in order."""
    found = []
    for binding in bindings(mod["main"]):
        callee = getattr(binding.value, "args", [None])[0]
        func = mod[callee] if type(callee).__name__ == "GlobalVar" else None
        if func is not None and func.attrs and ATTR in func.attrs:
            found.append(from_text(str(func.attrs[ATTR])))
    return found


def lowered(kit, module, *inputs):
    return lower(kit.workload(kit.shaken(module), *inputs), kit.HARDWARE).module


MODULES = {
    "conv bn relu": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
    ),
    "conv with bias, bn": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
    "grouped": lambda: nn.Conv2d(8, 16, 3, groups=2, stride=2, padding=(0, 1)),
    "depthwise": lambda: nn.Conv2d(8, 8, 3, groups=8, padding=1),
    "dilated": lambda: nn.Conv2d(4, 8, 3, dilation=2, padding=2),
    "five channels": lambda: nn.Conv2d(4, 5, 3),
    "five channels, bn": lambda: nn.Sequential(nn.Conv2d(4, 5, 3, bias=False), nn.BatchNorm2d(5)),
    "1 output channel": lambda: nn.Conv2d(4, 1, 1),
    "conv1d": lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 8, 3)),
    "classifier": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    ),
    "flatten of an image": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8 * 6 * 7, 7)
    ),
    "pools": lambda: nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, ceil_mode=True)),
    "adaptive": lambda: nn.Sequential(nn.Conv2d(4, 8, 1), nn.AdaptiveAvgPool2d(3)),
    "softmax": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4 * 8 * 9, 20), nn.Softmax(-1)),
    "prelu": lambda: nn.Sequential(nn.Conv2d(4, 8, 1), nn.PReLU(8)),
    "transposed": lambda: nn.ConvTranspose2d(4, 8, 3, stride=2),
}


@pytest.mark.parametrize("name", MODULES)
def test_lowered_module_computes_the_same(kit, name):
    torch.manual_seed(0)
    module = MODULES[name]()
    first = next((m for m in module.modules() if hasattr(m, "in_channels")), None)
    channels = 4 if first is None or "conv1d" in name else first.in_channels
    x = torch.randn(2 if name != "conv1d" else 1, channels, 8, 9)
    mod = lowered(kit, module, x)
    kit.assert_same(kit.run(mod, x.numpy()), kit.eager(module, x))


def test_batch_norm_and_bias_leave_three_kernels(kit):
    for bias in (False, True):
        module = nn.Sequential(nn.Conv2d(3, 8, 3, bias=bias), nn.BatchNorm2d(8), nn.ReLU())
        found = kit.kernels(lowered(kit, module, torch.randn(1, 3, 8, 8)))
        assert [k for k in found if "transpose" not in k] == ["conv2d", "add", "relu"], bias


def test_conv_anchor(kit):
    module = nn.Conv2d(8, 16, (3, 5), (2, 1), (0, 2), groups=2)
    (anchor,) = anchors(lowered(kit, module, torch.randn(2, 8, 9, 7)))
    wanted = Conv2d(2, 9, 7, 8, 16, 3, 5, (2, 1), (0, 2, 0, 2), (1, 1), 2, "float32")
    assert anchor == wanted


def test_dense_anchor(kit):
    (anchor,) = anchors(lowered(kit, nn.Linear(12, 16), torch.randn(2, 5, 12)))
    assert anchor == Dense((2,), 5, 12, 16, "float32")


@pytest.mark.parametrize("channels, wanted", [(5, 8), (8, 8), (20, 20), (255, 256), (1, 8)])
def test_channels_that_fill_no_vector_are_padded(kit, channels, wanted):
    (anchor,) = anchors(lowered(kit, nn.Conv2d(4, channels, 1), torch.randn(1, 4, 5, 5)))
    assert wanted == anchor.O
    (anchor,) = anchors(lowered(kit, nn.Linear(4, channels), torch.randn(3, 4)))
    assert wanted == anchor.O


def test_grouped_channels_are_not_padded(kit):
    module = nn.Conv2d(6, 6, 3, groups=2)
    (anchor,) = anchors(lowered(kit, module, torch.randn(1, 6, 5, 5)))
    assert anchor.O == 6


NO_ANCHOR = {
    "weight is an input": ("float32", "float32", False),
    "sum in a narrower type": ("float32", "float16", True),
}


@pytest.mark.parametrize("name", NO_ANCHOR)
def test_convolution_without_anchor(kit, name):
    dtype, out, constant = NO_ANCHOR[name]
    w = relax.const(np.ones((8, 3, 3, 4), dtype))

    def body(b, x, *rest):
        return b.emit(
            relax.op.nn.conv2d(
                x, w if constant else rest[0], data_layout="NHWC", kernel_layout="OHWI",
                out_dtype=out,
            )
        )  # fmt: skip

    types = [((1, 6, 6, 4), dtype)] + ([] if constant else [((8, 3, 3, 4), dtype)])
    mod = relax.transform.LegalizeOps(legalize_map(kit.HARDWARE))(kit.written(body, *types))
    assert kit.kernels(mod) and anchors(mod) == []


def test_convolution_in_another_layout_has_no_anchor(kit):
    w = relax.const(np.ones((8, 4, 3, 3), "float32"))
    mod = kit.written(lambda b, x: b.emit(relax.op.nn.conv2d(x, w)), ((1, 4, 6, 6), "float32"))
    mod = relax.transform.LegalizeOps(legalize_map(kit.HARDWARE))(mod)
    assert kit.kernels(mod) and anchors(mod) == []


def test_product_of_two_inputs_has_no_anchor(kit):
    types = ((3, 4), "float32"), ((4, 5), "float32")
    mod = kit.written(lambda b, x, y: b.emit(relax.op.matmul(x, y)), *types)
    mod = relax.transform.LegalizeOps(legalize_map(kit.HARDWARE))(mod)
    assert kit.kernels(mod) == ["matmul"] and anchors(mod) == []


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_concat(kit, dim):
    class Cat(nn.Module):
        def forward(self, x, y):
            return torch.cat([x, y, x], dim)

    x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    mod = lowered(kit, Cat(), x, y)
    assert kit.kernels(mod) == ["concat"]
    kit.assert_same(kit.run(mod, x.numpy(), y.numpy()), kit.eager(Cat(), x, y))


def test_names_are_unique(kit):
    mod = lowered(kit, MODULES["classifier"](), torch.randn(1, 4, 8, 8))
    names = [p.name for p in mod["main"].params] + [b.var.name for b in bindings(mod["main"])]
    assert len(set(names)) == len(names)
    again = NameVariables()(mod)
    assert [b.var.name for b in bindings(again["main"])] == names[1:]


def test_count_uses(kit):
    def body(b, x):
        y = b.emit(relax.op.abs(x))
        return b.emit(relax.op.add(y, b.emit(relax.op.negative(y))))

    mod = kit.written(body, ((4,), "float32"))
    uses = {v.name: n for v, n in count_uses(mod["main"]).items()}
    first = bindings(mod["main"])[0].var.name
    assert uses[first] == 2


def test_lower_leaves_the_workload_alone(kit):
    module = MODULES["conv bn relu"]().eval()
    workload = kit.workload(module, torch.randn(1, 3, 8, 8))
    before = workload.module.script()
    low = lower(workload, kit.HARDWARE)
    assert workload.module.script() == before
    changed = {"module": None, "origins": {}}
    assert dataclasses.replace(low, **changed) == dataclasses.replace(workload, **changed)


def test_arrays_of_constants_only():
    assert array_of(relax.Var("x", relax.TensorType((2,), "float32"))) is None
    assert np.array_equal(array_of(relax.const(np.arange(3))), np.arange(3))
