"""A planted fault is found by its name, in a pass and in a rule; a right model has none."""

import copy

import pytest
import torch
from torch import nn

from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.rules.horizontal import HORIZONTAL
from tvmfuse.passes import fold_batch_norm, pipeline
from tvmfuse.verify.bisect import bisect


def test_a_right_model_has_no_culprit(kit):
    found = bisect(kit.workload(), kit.HARDWARE)
    assert found.broken == {} and found.step is None and found.builds == 1


def test_wrong_pass_is_named(kit, monkeypatch):
    folder = fold_batch_norm._Folder._cls
    real = folder._into_producer
    monkeypatch.setattr(
        folder, "_into_producer", lambda self, x, axis, s, t: real(self, x, axis, s, t * 0.5)
    )
    said = []
    found = bisect(kit.workload(), kit.HARDWARE, tell=said.append)
    assert found.broken and found.step is not None
    assert found.step.kind == "pass" and found.step.name.endswith(" FoldBatchNorm")
    assert found.builds == len(said) <= 9
    assert found.to_json()["culprit"] == {"kind": "pass", "name": found.step.name}


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        return torch.relu(self.q(x)) * torch.tanh(self.k(x))


def test_wrong_rule_is_named(kit, monkeypatch):
    torch.manual_seed(0)
    work = import_module(Branches().eval(), (torch.randn(8, 32),))
    _, merges = pipeline.lowering(work, kit.HARDWARE)
    rule = next(m.rule for m in merges.chosen if m.rule in HORIZONTAL)
    real = type(rule).rewrite

    def swapped(self, graph, match, builder):
        results = real(self, graph, match, builder)
        return dict(zip(results, reversed(results.values()), strict=True))

    monkeypatch.setattr(type(rule), "rewrite", swapped)
    found = bisect(work, kit.HARDWARE)
    assert found.step is not None and (found.step.kind, found.step.name) == ("rule", rule.name)


def test_fault_outside_of_all_steps_is_said(kit):
    work = kit.workload()
    other = copy.deepcopy(work.reference)
    with torch.no_grad():
        other.point.bias.add_(1.0)
    found = bisect(kit.replace(work, reference=other), kit.HARDWARE)
    assert found.broken and found.step is None
    assert "the import, a required lowering or a template is at fault" in found.detail


def test_every_optional_pass_can_be_left_out(kit):
    every = pipeline.optional_passes(kit.HARDWARE)
    assert any(label.endswith(" FoldBatchNorm") for label in every)
    low, _ = pipeline.lowering(kit.workload(), kit.HARDWARE, (), every)
    assert "batch_norm" in low.module.script()


@pytest.mark.parametrize("name", ["ConvertLayout", "LowerAttention", "FuseMoves"])
def test_passes_have_stable_names(kit, name):
    assert any(label.endswith(f" {name}") for label in pipeline.optional_passes(kit.HARDWARE))
