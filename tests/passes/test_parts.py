"""A group taken apart: its operators as kernels, and where each reads from."""

import torch
from torch import nn

from tvmfuse.fusion.planner import make_plan
from tvmfuse.passes.parts import parts_of
from tvmfuse.passes.pipeline import fuse, lower
from tvmfuse.passes.specialize import group_kernels


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        return torch.relu(self.conv(x) + x)


def test_operators_in_order_with_their_sources(kit):
    low = lower(kit.workload(Residual(), torch.randn(1, 8, 4, 4)), kit.HARDWARE)
    plan = make_plan(low, kit.HARDWARE)
    fused = fuse(low, plan)
    (group,) = [g for g in group_kernels(fused.module, kit.HARDWARE) if g.variants]
    conv, bias, add, relu = parts_of(fused.module, group.name, kit.HARDWARE)
    function = fused.module[group.name]
    assert [len(p.operands) for p in (conv, bias, add, relu)] == [2, 2, 2, 1]
    assert all(o >= 0 for o in conv.operands)  # activation and weight
    assert group.weight in conv.operands and conv.kernel.variants and conv.anchor
    assert bias.operands[0] == ~0 and add.operands[0] == ~1 and relu.operands == (~2,)
    assert {conv.operands[0]} == {add.operands[1]}  # the residual is the convolution's input
    used = {o for p in (conv, bias, add, relu) for o in p.operands if o >= 0}
    assert used == set(range(len(function.params)))
    assert {(p.shape, p.dtype) for p in (conv, bias, add, relu)} == {((1, 4, 4, 8), "float32")}
    assert [v.name for v in conv.kernel.variants] == [v.name for v in group.variants]


def test_equal_groups_have_one_key_and_others_another(kit):
    def key(channels):
        module = nn.Sequential(nn.Conv2d(8, channels, 1), nn.ReLU())
        low = lower(kit.workload(module, torch.randn(1, 8, 4, 4)), kit.HARDWARE)
        fused = fuse(low, make_plan(low, kit.HARDWARE))
        return next(g.key for g in group_kernels(fused.module, kit.HARDWARE) if g.variants)

    assert len(key(8)) == 16 and key(8) == key(8) != key(16)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(self.layer(x) + x)


def test_a_norm_behind_a_product_is_a_part_of_its_own(kit):
    low = lower(kit.workload(Normed(), torch.randn(26, 16)), kit.HARDWARE)
    fused = fuse(low, make_plan(low, kit.HARDWARE))
    (group,) = group_kernels(fused.module, kit.HARDWARE)
    *_, add, norm = parts = parts_of(fused.module, group.name, kit.HARDWARE)
    assert len(parts) == 4 and parts[0].anchor and not norm.anchor
    assert norm.operands[0] == ~2 and all(o >= 0 for o in norm.operands[1:])  # scale and shift
    assert add.operands[1] == parts[0].operands[0]  # the residual
