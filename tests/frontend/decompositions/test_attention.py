import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tvmfuse.frontend.decompositions.attention import attention

Q = torch.linspace(-1, 1, 2 * 4 * 3 * 5).reshape(2, 4, 3, 5)
K = torch.linspace(1, -2, 2 * 4 * 6 * 5).reshape(2, 4, 6, 5)
BOOL_MASK = torch.ones(3, 6, dtype=torch.bool).tril()
EMPTY_ROW = BOOL_MASK & torch.tensor([[True], [False], [True]])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": BOOL_MASK},
        {"attn_mask": EMPTY_ROW},
        {"attn_mask": torch.linspace(-3, 3, 18).reshape(3, 6)},
    ],
)
def test_same_numbers_as_pytorch(options):
    want = F.scaled_dot_product_attention(Q, K, K + 1, **options)
    torch.testing.assert_close(attention(Q, K, K + 1, **options), want)


def test_grouped_queries():
    key = K[:, :2]
    want = F.scaled_dot_product_attention(Q, key, key, enable_gqa=True)
    torch.testing.assert_close(attention(Q, key, key, enable_gqa=True), want)


class Attend(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k):
        return F.scaled_dot_product_attention(q, k, k, **self.options)


def test_unmasked_attention_imports_as_matmul_softmax_matmul(assert_matches_eager):
    tvm = pytest.importorskip("tvm")
    workload = assert_matches_eager(Attend(), Q, K)
    bindings = [b.value for block in workload.module["main"].body.blocks for b in block.bindings]
    found = [v.op.name.removeprefix("relax.") for v in bindings if isinstance(v, tvm.relax.Call)]
    assert found == ["multiply", "permute_dims", "matmul", "nn.softmax", "matmul"]


@pytest.mark.parametrize("options", [{"is_causal": True}, {"attn_mask": EMPTY_ROW}])
def test_masked_attention_matches_eager(assert_matches_eager, options):
    assert_matches_eager(Attend(**options), Q, K)
