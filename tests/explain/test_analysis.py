"""Shares, sides, regions and chains of a small graph whose figures are known."""

import pytest
import torch
from torch import nn

from tvmfuse.errors import ImportModelError
from tvmfuse.explain.analysis import by_operator, heavy_regions, memory_chains, side
from tvmfuse.frontend.fx_graph import fx_operators
from tvmfuse.frontend.import_model import import_module
from tvmfuse.graph import Graph, Operator, operators
from tvmfuse.hardware import resolve_target
from tvmfuse.hardware.limits import limits_of
from tvmfuse.passes.name_variables import NameVariables

LIMITS = limits_of(resolve_target("llvm:haswell", 2))  # ridge 8


def operator(name, op, intensity, *reads):
    return Operator(name, op, 1000.0 * intensity, 1000, reads)


GRAPH = [
    operator("a", "conv2d", 100),
    operator("b", "relu", 1, "a"),
    operator("c", "conv2d", 100, "b"),
    operator("d", "relu", 1, "c"),
    operator("e", "add", 1, "d"),
    operator("f", "exp", 1, "e"),
    operator("g", "conv2d", 50, "f"),
]


def test_sides_of_the_ridge():
    assert [side(o, LIMITS) for o in GRAPH[:2]] == ["compute", "memory"]


def test_shares_by_operator():
    rows = by_operator(GRAPH, LIMITS)
    assert [r["op"] for r in rows] == ["conv2d", "relu", "add", "exp"]
    first = rows[0]
    assert (first["count"], first["share"], first["flops"]) == (3, round(3 / 7, 4), 250e3)
    assert (first["compute"], first["memory"]) == (3, 0)
    assert first["flops_per_byte"] == pytest.approx(250 / 3, abs=1e-3)


def test_measured_times_come_first():
    rows = by_operator(GRAPH, LIMITS, {"exp": 5.0, "conv2d": 1.0})
    assert [(r["op"], r["measured_ms"]) for r in rows][:2] == [("exp", 5.0), ("conv2d", 1.0)]


def test_regions_reach_over_one_light_operator_and_no_further():
    rows = heavy_regions(GRAPH, LIMITS)
    assert [(r["first"], r["last"], r["operators"]) for r in rows] == [("a", "c", 2), ("g", "g", 1)]


def test_chains_end_where_somebody_else_reads():
    (row,) = memory_chains(GRAPH, LIMITS)
    assert (row["ops"], row["bytes"]) == (["relu", "add", "exp"], 3000)
    read_twice = [*GRAPH, operator("h", "relu", 1, "d")]
    assert memory_chains(read_twice, LIMITS)[0]["ops"] == ["add", "exp"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)))
        return self.head(y.mean((2, 3)))


def test_torch_fx_and_relax_agree_on_the_work():
    module, x = Net().eval(), torch.randn(1, 3, 10, 10)
    before = {o.op: o for o in fx_operators(module, (x,))}
    named = NameVariables()(import_module(module, (x,)).module)
    after = {o.op: o for o in operators(Graph(named))}
    assert before["conv2d"].flops == after["nn.conv2d"].flops == 2 * 8 * 64 * 27
    assert before["linear"].flops == after["matmul"].flops == 2 * 8 * 4
    assert before["mean"].flops == after["mean"].flops == 8 * 64
    assert before["relu"].moved_bytes == after["nn.relu"].moved_bytes == 2 * 8 * 64 * 4
    assert after["nn.batch_norm"].flops == 4 * 8 * 64


def test_control_flow_cannot_be_traced_and_says_what_to_do():
    class Branch(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(ImportModelError, match=r"cannot trace Branch.*--graph relax"):
        fx_operators(Branch(), (torch.ones(2),))
