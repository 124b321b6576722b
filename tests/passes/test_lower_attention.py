"""Attention becomes one kernel that reads and writes through the data movement around it."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tvmfuse.fusion.planner import make_plan
from tvmfuse.passes.pipeline import fuse, lower
from tvmfuse.passes.specialize import group_kernels
from tvmfuse.schedules.anchor import ATTR, from_text


class Lambda(nn.Module):
    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def lowered(kit, function, *inputs, rtol=1e-5, **parts):
    """Kernels of the lowered module, whose outputs are eager's, and its attention record."""
    torch.manual_seed(0)
    module = Lambda(function, **parts).eval()
    mod = lower(kit.workload(module, *inputs), kit.HARDWARE).module
    kit.assert_same(kit.run(mod, *[i.numpy() for i in inputs]), kit.eager(module, *inputs), rtol)
    found = [from_text(str(f.attrs[ATTR])) for gv, f in mod.functions_items()
             if gv.name_hint.startswith("attention")]  # fmt: skip
    return kit.kernels(mod), found[0] if found else None


def heads(t, h=4):
    return t.unflatten(-1, (h, -1)).transpose(1, 2)


X = torch.randn(2, 9, 32)


def test_merged_projections_are_read_in_place(kit):
    def forward(m, x):
        q, k, v = m.qkv(x).view(2, 9, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 9, 32)

    nodes, a = lowered(kit, forward, X, qkv=nn.Linear(32, 96))
    assert nodes == ["dense", "add", "attention"]
    assert a.buffers == (((2, 9, 96), "float32"),)
    assert [v.offset for v in (a.q, a.k, a.v)] == [0, 32, 64]
    assert (a.q.row, a.q.column, a.out.row, a.out_shape) == (96, 1, 32, (2, 9, 32))


def test_projections_of_their_own_are_merged_and_read_in_place(kit):
    def forward(m, x, mask):
        q, k, v = heads(m.q(x)), heads(m.k(x)), heads(m.v(x))
        weights = (q @ k.mT / math.sqrt(8) + mask).softmax(-1)
        return m.o((weights @ v).transpose(1, 2).flatten(2))

    parts = {name: nn.Linear(32, 32) for name in "qkvo"}
    nodes, a = lowered(kit, forward, X, torch.randn(2, 1, 1, 9), **parts)
    assert nodes == ["dense", "add", "attention", "dense", "add"]
    assert [s.kind for s in a.steps] == ["scale", "add"]


def test_groups_of_heads_share_their_keys_by_index(kit):
    def forward(m, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    inputs = torch.randn(2, 6, 7, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    nodes, a = lowered(kit, forward, *inputs)
    assert nodes == ["attention"]
    assert a.lead == (2, 2, 3) and a.k.lead == (2 * 9 * 8, 9 * 8, 0)


def test_windows_with_two_masks(kit):
    bias, windows = torch.randn(2, 9, 9), torch.randn(3, 1, 9, 9)

    def forward(m, q, k, v):
        scores = q @ k.mT + bias
        scores = (scores.view(2, 3, 2, 9, 9) + windows).view(6, 2, 9, 9)
        return scores.softmax(-1) @ v

    nodes, a = lowered(kit, forward, *(torch.randn(6, 2, 9, 8) for _ in range(3)))
    assert nodes == ["attention"]
    assert a.lead == (2, 3, 2)
    assert [s.mask.lead for s in a.steps] == [(0, 0, 81), (0, 81, 0)]


def test_multihead_attention_of_pytorch(kit):
    attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(m, x):
        return m.a(x, x, x, need_weights=False)[0]

    nodes, a = lowered(kit, forward, X[:1], a=attention)
    assert nodes == ["dense", "add", "attention", "dense", "add"]
    assert a.steps[0].kind == "scale"  # taken from between the projection and the kernel


@pytest.mark.parametrize("shape", [(9, 8), (4, 9, 8), (1, 4, 9, 8), (2, 1, 9, 8)], ids=str)
def test_leading_axes_of_any_number(kit, shape):
    def forward(m, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    nodes, _ = lowered(kit, forward, *(torch.randn(shape) for _ in range(3)))
    assert nodes == ["attention"]


def test_operands_that_broadcast(kit):
    def forward(m, q, k, v):
        return (q @ k.mT).softmax(-1) @ v

    nodes, a = lowered(
        kit, forward, torch.randn(2, 4, 9, 8), torch.randn(4, 7, 8), torch.randn(2, 1, 7, 8)
    )
    assert nodes == ["attention"]
    assert a.k.lead == (0, 56) and a.v.lead == (56, 0)


def test_rows_without_a_key(kit):
    mask = torch.rand(9, 9) > 0.5
    mask[4] = False

    def guarded(m, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, mask)

    def plain(m, q, k, v):
        return (q @ k.mT).masked_fill(~mask, -math.inf).softmax(-1) @ v

    inputs = [torch.randn(1, 2, 9, 8) for _ in range(3)]
    for function, safe in ((guarded, True), (plain, False)):
        nodes, a = lowered(kit, function, *inputs)
        assert nodes == ["attention"] and a.safe is safe


def test_what_else_is_read_stays(kit):
    """The transposed result is returned too: the kernel writes it untransposed."""

    def forward(m, q, k, v):
        out = F.scaled_dot_product_attention(q, k, v)
        return out.transpose(1, 2).reshape(2, 9, 32), out * 2

    nodes, a = lowered(kit, forward, *(torch.randn(2, 4, 9, 8) for _ in range(3)))
    assert nodes.count("attention") == 1 and "transpose" in nodes
    assert a.out_shape == (2, 4, 9, 8)


def test_a_slice_that_cuts_two_axes_is_stored_first(kit):
    def forward(m, x):
        rows = x.transpose(1, 2).reshape(1, 36, 8)[:, 2:11]  # no stride leads from row to row
        return F.scaled_dot_product_attention(rows, rows, rows)

    x = torch.randn(1, 6, 6, 8)
    nodes, a = lowered(kit, forward, x)
    assert nodes[-1] == "attention" and len(nodes) > 1
    assert np.prod(a.buffers[0][0]) <= x.numel()


def test_a_group_has_all_variants_and_no_weight(kit):
    def forward(m, q, k, v):
        return F.scaled_dot_product_attention(q, k, v).relu() + 1

    inputs = [torch.randn(1, 2, 40, 8) for _ in range(3)]
    low = lower(kit.workload(Lambda(forward).eval(), *inputs), kit.HARDWARE)
    plan = make_plan(low, kit.HARDWARE)
    groups = group_kernels(fuse(low, plan).module, kit.HARDWARE)
    attention = groups[0]
    assert len(attention.variants) == len(attention.kernels) > 1
    assert [g.weight for g in groups] == [-1] * len(groups)
    assert int(attention.kernels[0].attrs["estimated_flops"]) == 2 * 2 * 40 * 40 * 16
