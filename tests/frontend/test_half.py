"""Half precision computes in float32 and rounds once; doubles and integers keep their type."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tvmfuse
from tvmfuse.frontend.half import widen_halves
from tvmfuse.frontend.rewriting import operator_name
from tvmfuse.frontend.torch_export import export_program


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.dense, self.layer = nn.Linear(8, 16), nn.LayerNorm(16)
        self.mix = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x)))
        y = F.max_pool2d(y, 2).flatten(2).transpose(1, 2)
        y = self.layer(F.gelu(self.dense(y)))
        y = y + self.mix(y, y, y, need_weights=False)[0]
        return torch.softmax(y.mean(1), -1), y.sum()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_of_another_type(dtype):
    torch.manual_seed(0)
    model, x = Net().eval().to(dtype), torch.randn(1, 3, 8, 8).to(dtype)
    compiled = tvmfuse.compile(model, (x,), trials=0)
    with torch.no_grad():
        want = model(x)
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype]
    for got, wanted in zip(compiled(x), want, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


def test_what_computes_reads_float32():
    program = export_program(Net().eval().half(), (torch.randn(1, 3, 8, 8).half(),))
    program = program.run_decompositions()
    widen_halves(program)
    computing = [n for n in program.graph.nodes if operator_name(n) in ("addmm", "convolution")]
    assert computing
    for node in computing:
        types = {s.meta["val"].dtype for s in node.all_input_nodes}
        assert types == {torch.float32} and node.meta["val"].dtype == torch.float32
    output = next(n for n in program.graph.nodes if n.op == "output")
    assert all(a.meta["val"].dtype == torch.float16 for a in output.args[0])


def test_float32_is_left_alone():
    program = export_program(Net().eval(), (torch.randn(1, 3, 8, 8),)).run_decompositions()
    before = str(program.graph)
    widen_halves(program)
    assert str(program.graph) == before


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float64])
def test_products_keep_their_type(assert_matches_eager, dtype):
    class Product(nn.Module):
        def forward(self, x, y):
            return x @ y, torch.addmm(x[:, :3], x, y), torch.bmm(x[None], y[None])

    x, y = torch.arange(24).reshape(4, 6).to(dtype), torch.arange(18).reshape(6, 3).to(dtype)
    assert_matches_eager(Product(), x, y)


def test_assertions_among_the_operators(assert_matches_eager):
    """``mean(dtype=...)`` of a half exports with an assertion that has no value."""

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean(-1, dtype=torch.float32), x.sum(dtype=torch.float64)

    assert_matches_eager(Mean(), torch.randn(4, 6).half())
