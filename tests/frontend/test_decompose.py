"""Decomposing each distinct call once gives what decomposing the whole program gives."""

import pytest
import torch
from torch import nn
from torch.fx.node import map_arg
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from tvmfuse.frontend import torch_export
from tvmfuse.frontend.decompose import decompose
from tvmfuse.frontend.decompositions import decompositions
from tvmfuse.frontend.simple_calls import table_of
from tvmfuse.frontend.torch_export import export_program


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x)), inplace=True)
        y += x
        return F.relu(y, inplace=True)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(8, 24), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).reshape(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 8)
        return F.dropout(self.out(y), 0.1, self.training) + x


class Several(nn.Module):
    def forward(self, x):
        values, places = x.max(dim=1)
        first, second = x.split([2, 3], dim=1)
        return {"max": values, "at": places, "parts": [first.softmax(-1), second.contiguous()]}


class Highest(nn.Module):
    def forward(self, x):
        values, places = x.topk(2)
        return values, x.relu().topk(3)[1], places


class Input(nn.Module):
    def forward(self, input):
        return input * 2.0 + 1


class Written(nn.Module):
    def forward(self, x):
        y = x * 2
        y[:, 0] = 1.0  # seen through y: another name of the same memory
        return y


class Chosen(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,))


LOCAL = {
    "writes in place": (nn.Sequential(Block(), Block(), Block()), (2, 4, 6, 6)),
    "views and products": (nn.Sequential(Attention(), Attention()), (2, 5, 8)),
    "several results": (Several(), (3, 5)),
    "several results of a simple one": (Highest(), (3, 5)),
    "input": (Input(), (3, 5)),
}


def table():
    return table_of(torch_export._KEPT, decompositions())


def shown(program):
    """Calls in order, with canonical names and the layout of each result."""
    names, lines = {}, []
    for node in program.graph.nodes:
        names[node] = node.name if node.op == "placeholder" else f"%{len(names)}"
        layout = pytree.tree_map(
            lambda v: (v.dtype, tuple(v.shape), v.stride()) if isinstance(v, torch.Tensor) else v,
            node.meta.get("val") if node.op == "call_function" else None,
        )
        arguments = map_arg((node.args, node.kwargs), names.__getitem__)
        lines.append((str(node.target), str(arguments), str(layout)))
    return lines


def whole(program, monkeypatch):
    """What PyTorch makes of the whole program."""
    monkeypatch.setattr(torch_export, "decompose", lambda *_: None)
    return torch_export.functional(program)


@pytest.mark.parametrize("name", LOCAL)
def test_local_decomposition_is_that_of_the_whole(name, monkeypatch):
    module, shape = LOCAL[name]
    x = torch.randn(shape)
    program = export_program(module.eval(), (x,))
    local = decompose(program, table())
    assert local is not None
    want = whole(program, monkeypatch)
    assert shown(local) == shown(want)
    with torch.no_grad():
        got, eager = local.module()(x.clone()), module(x.clone())
    for one, other in zip(pytree.tree_leaves(got), pytree.tree_leaves(eager), strict=True):
        torch.testing.assert_close(one, other)


@torch.library.custom_op("tvmfuse_tests::halves", mutates_args=())
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * 0.5, x * 0.25


@halves.register_fake
def _(x):
    return torch.empty_like(x), torch.empty_like(x)


def test_an_operator_of_several_results_may_stay():
    class Halves(nn.Module):
        def forward(self, x):
            half, quarter = torch.ops.tvmfuse_tests.halves(x.softmax(-1))
            return half - quarter

    x = torch.randn(3, 5)
    local = decompose(export_program(Halves().eval(), (x,)), table())
    torch.testing.assert_close(local.module()(x), x.softmax(-1) * 0.25)


@pytest.mark.parametrize("module", [Written(), Chosen()], ids=["a view is written", "cond"])
def test_what_is_not_local_is_left_to_pytorch(module):
    assert decompose(export_program(module.eval(), (torch.randn(3, 5),)), table()) is None


def test_nodes_say_where_the_user_called_them_and_what():
    program = export_program(Several().eval(), (torch.randn(3, 5),))
    calls = [n for n in decompose(program, table()).graph.nodes if n.op == "call_function"]
    assert all("forward" in n.meta["stack_trace"] for n in calls)
    sources = {str(n.meta["from_node"][0].target) for n in calls if "amax" in str(n.target)}
    assert sources <= {"aten.max.dim"}


@pytest.fixture
def traces(monkeypatch):
    """How many calls each trace took apart."""
    from tvmfuse.frontend import decompose as its

    counts, traced = [], its._traced
    monkeypatch.setattr(its, "_traced", lambda c, t: counts.append(len(c)) or traced(c, t))
    return counts


def test_each_distinct_call_is_traced_once(traces):
    module = nn.Sequential(*(nn.AdaptiveAvgPool2d((2, 2)) for _ in range(3)), nn.Softmax(1))
    program = export_program(module.eval(), (torch.randn(1, 4, 2, 2),))
    assert decompose(program, table()) is not None
    assert traces == [2]  # pooling, softmax


def test_blocks_of_convolution_norm_and_activation_need_no_trace(traces):
    module = nn.Sequential(*(Block() for _ in range(5))).eval()
    assert decompose(export_program(module, (torch.randn(1, 4, 6, 6),)), table()) is not None
    assert traces == []
