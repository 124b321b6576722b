"""``tvmfuse explain``: the fusion table, why a rule did not fire, and the graph."""

import json
import textwrap

import pytest

from tvmfuse import cli
from tvmfuse.fusion.rules import RULES

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = torch.relu(self.conv(x)).mean((2, 3))
        return torch.tanh(self.q(y)) * torch.tanh(self.k(y))

def net():
    return Net().eval(), (torch.randn(1, 3, 10, 10),)
"""


@pytest.fixture
def explained(tmp_path, monkeypatch, capsys):
    (tmp_path / "explained_net.py").write_text(textwrap.dedent(MODEL))
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*arguments, code=0):
        assert cli.main(["explain", "explained_net:net", *arguments]) == code
        out = capsys.readouterr()
        return json.loads(out.out) if "--json" in arguments else out.out + out.err

    return run


def test_the_fusion_table(explained):
    text = explained()
    assert "conv2d add relu" in text and "fused groups:" in text
    assert "merged operators:" in text and "horizontal" in text
    assert "ridge" in text and "not measured" in text  # every limit says where it is from


def test_json_holds_the_matrix(explained):
    answer = explained("--json")
    fusion = answer["fusion"]
    rows = {tuple(r["ops"]): r for r in fusion["feasibility"]}
    assert rows[("transpose", "conv2d", "add", "relu")]["verdict"] in ("ok", "grey")
    assert fusion["counts"]["horizontal"] == 1
    assert len(fusion["groups"]) == fusion["kernels"]
    assert "graph" not in answer and "why" not in answer


def test_why_a_rule_did_not_fire(explained):
    why = explained("--json", "--why", "silu(conv2d(x, w))")["why"]
    assert why["fired"] == 0 and "1 groups of conv2d" in why["stopped"]
    assert "no silu" in why["stopped"]
    why = explained("--json", "--why", "bias(conv1d(x, w))")["why"]
    assert "the model has no conv1d" in why["stopped"]
    concat, together, over = (rule.name for rule in RULES["diagonal"])
    for name in (concat, together):
        why = explained("--json", "--why", name)["why"]
        assert why["fired"] == 0 and why["stopped"].startswith("the model has no concatenation")
    assert explained("--json", "--why", over)["why"]["fired"] == 1
    attention = "matmul(softmax(matmul(q, kᵀ)), v)"
    assert "second operand is constant" in explained("--why", attention)


def test_why_a_rule_fired_or_is_off(explained):
    name = "relu(conv2d(x, w))"
    assert explained("--json", "--why", name)["why"]["fired"] == 1
    why = explained("--json", "--why", name, "--no-rule", name)["why"]
    assert (why["fired"], why["refused"][0]["reason"]) == (0, "the rule is switched off")


def test_the_graph_before_and_after_import(explained):
    before = explained("--graph", "fx", "--json")
    assert "fusion" not in before
    after = explained("--graph", "--json")
    flops = [
        next(r["flops"] for r in answer["graph"]["operators"] if r["op"].endswith("conv2d"))
        for answer in (before, after)
    ]
    assert flops[0] == flops[1] == 2 * 8 * 64 * 27
    assert "compute-heavy regions" in explained("--graph") or "bandwidth" in explained("--graph")


def test_limits_of_a_gpu(explained):
    assert explained("--device", "t4", "--json")["limits"]["name"] == "t4"
    assert "unknown GPU 'a10'" in explained("--device", "a10", code=1)


def test_an_unknown_rule_is_refused_before_the_model_is_loaded(capsys):
    assert cli.main(["explain", "no_such_module:net", "--why", "relu(conv(x))"]) == 1
    assert "unknown rule 'relu(conv(x))'" in capsys.readouterr().err
