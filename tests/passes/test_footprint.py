"""What one inference launches, moves and allocates, counted by hand on a small model."""

import dataclasses

import pytest
import torch
import tvm
from torch import nn

from tvmfuse.build import build
from tvmfuse.choose import choose_kernels
from tvmfuse.errors import BuildError
from tvmfuse.fusion.planner import make_plan
from tvmfuse.fusion.rules.vertical import VERTICAL
from tvmfuse.passes.footprint import footprint
from tvmfuse.passes.pipeline import fuse, lower
from tvmfuse.passes.specialize import group_kernels


def built(kit, module, *inputs, **rules):
    low = lower(kit.workload(module, *inputs), kit.HARDWARE)
    fused = fuse(low, make_plan(low, kit.HARDWARE, **rules))
    groups = group_kernels(fused.module, kit.HARDWARE)
    choices = choose_kernels(groups, None, kit.HARDWARE)
    return build(fused, groups, choices, kit.HARDWARE)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(16, 16, 5, padding=2), nn.Conv2d(16, 24, 1)
        self.c = nn.Conv2d(40, 8, 1)

    def forward(self, x):
        y = torch.relu(self.a(x))
        return self.c(torch.cat([y, torch.relu(self.b(x))], 1)).mean((2, 3)), y


PIXELS = 8 * 8 * 4  # bytes of one channel


def test_every_tensor_is_counted_once_written_and_each_time_read(kit):
    moved = built(kit, Branches(), torch.randn(1, 16, 8, 8)).footprint
    # To NHWC, two convolutions side by side, convolution, mean, and y back to NCHW.
    assert moved.kernels == 6
    assert moved.written_bytes == (16 + 16 + 24 + 8) * PIXELS  # mean and y are returned
    assert moved.read_bytes == (2 * 16 + 40 + 8 + 16) * PIXELS  # y by itself, where it lies


def test_parts_of_a_concatenation_in_place_write_it_once(kit):
    class Beside(Branches):
        def forward(self, x):
            return self.c(torch.cat([torch.relu(self.a(x)), torch.relu(self.b(x))], 1))

    x = torch.randn(1, 16, 8, 8)
    without = built(kit, Beside(), x, diagonal=()).footprint
    moved = built(kit, Beside(), x).footprint
    assert moved.kernels == without.kernels - 1
    assert without.written_bytes - moved.written_bytes == 40 * PIXELS
    assert without.read_bytes - moved.read_bytes == 40 * PIXELS
    assert moved.memory_bytes < without.memory_bytes


def test_fusion_saves_what_lies_between(kit):
    module = nn.Sequential(nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 1))
    x = torch.randn(1, 16, 8, 8)
    fused = built(kit, module, x).footprint
    apart = built(kit, module, x, rules=(), off=VERTICAL).footprint
    assert apart.kernels - fused.kernels == 3  # two biases and an activation
    assert apart.written_bytes - fused.written_bytes == 3 * 16 * PIXELS
    assert apart.moved_bytes - fused.moved_bytes == 6 * 16 * PIXELS


def test_unknown_sizes_are_refused():
    n = tvm.tirx.Var("n", "int64")
    builder = tvm.relax.BlockBuilder()
    x = tvm.relax.Var("x", tvm.relax.TensorType((n,), "float32"))
    with builder.function("main", [x]):
        size = tvm.relax.ShapeExpr([n])
        made = tvm.relax.op.vm.alloc_storage(size, 0, "uint8")
        builder.emit_func_output(builder.emit(made))
    with pytest.raises(BuildError, match="only known when it runs"):
        footprint(builder.finalize())


def test_plain_data(kit):
    moved = built(kit, nn.ReLU(), torch.randn(4, 4)).footprint
    assert moved.to_json() == dataclasses.asdict(moved)
    assert (moved.written_bytes, moved.read_bytes, moved.memory_bytes) == (0, 0, 64)
