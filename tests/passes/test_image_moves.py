"""Layout changes beside a 3x3 convolution join it, and others keep their own kernel."""

import numpy as np
import pytest
import torch
from torch import nn

from tvmfuse import api
from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.planner import make_plan
from tvmfuse.fusion.rules.vertical import VERTICAL
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import lower

HARDWARE = resolve_target("llvm", 2)
READS, WRITES = "conv2d(transpose(x), w)", "transpose(conv2d(x, w))"
RULES = {r.name: r for r in VERTICAL if r.changes_layout}


def block(channels=16, kernel=3, stride=1, batch=1, side=(13, 10)):
    convolution = nn.Conv2d(channels, 32, kernel, stride, kernel // 2, bias=False)
    module = nn.Sequential(convolution, nn.BatchNorm2d(32), nn.ReLU()).eval()
    torch.manual_seed(0)
    return module, torch.randn(batch, channels, *side)


def plan(*arguments, off=(), **change):
    module, x = block(*arguments, **change)
    low = lower(import_module(module, (x,)), HARDWARE)
    return make_plan(low, HARDWARE, [r for r in VERTICAL if r not in off], off)


@pytest.mark.parametrize("batch", [1, 2])
def test_the_one_behind_joins(batch):
    first, group = plan(batch=batch).groups
    assert first.ops == ("transpose",)
    assert group.ops == ("conv2d", "add", "relu", "transpose")
    assert WRITES in group.steps


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("channels", [2, 3, 4])
def test_a_picture_is_read_as_it_comes(channels, batch):
    first, *_ = plan(channels, 7, 2, batch=batch).groups
    assert first.ops == ("transpose", "conv2d", "add", "relu")
    assert READS in first.steps


@pytest.mark.parametrize("rule", [READS, WRITES])
def test_switched_off_it_stays_apart(rule):
    found = plan(*((3,) if rule == READS else ()), off=[RULES[rule]])
    assert len(found.groups) == 3
    assert "the rule is switched off" in {r.reason for r in found.refused if r.rule == rule}


def test_planes_that_are_many_or_grouped_stay_in_front():
    found = plan(batch=2)
    reasons = [r.reason for r in found.refused if r.rule == READS]
    assert reasons == ["the convolution is none without groups of up to 4 channels"]


def test_another_transpose_stays_in_front():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, x):
            return self.convolution(x.transpose(2, 3))

    torch.manual_seed(0)
    low = lower(import_module(Turned().eval(), (torch.randn(2, 3, 9, 7),)), HARDWARE)
    found = make_plan(low, HARDWARE, VERTICAL)
    assert any("not channels first to channels last" in r.reason for r in found.refused)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    "channels, kernel, stride, padding, side",
    [
        (3, 7, 2, 3, (37, 41)), (1, 5, 1, 2, (11, 13)), (4, 4, 4, 0, (32, 20)),
        (3, 3, 2, 0, (17, 1 + 2 * 7)), (2, 1, 1, 0, (5, 7)), (3, 3, 1, 1, (1, 1)),
    ],
)  # fmt: skip
def test_numbers_of_pictures(channels, kernel, stride, padding, side, batch):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(channels, 17, kernel, stride, padding), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    ).eval()
    x = torch.randn(batch, channels, *side)
    compiled = api.compile(module, (x,), threads=2, trials=0, no_log=True)
    with torch.no_grad():
        want = module(x).numpy()
    got = torch.from_dlpack(compiled(x.numpy())).numpy()
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    assert compiled.report["verify"]["passed"]


@pytest.mark.parametrize(
    "change", [{"kernel": 5}, {"stride": 2}, {"channels": 12}], ids=["5x5", "stride", "channels"]
)
def test_convolutions_that_cannot_stay_between_transposes(change):
    found = plan(batch=2, **change)
    assert [len(g.ops) for g in found.groups] == [1, 3, 1]
    assert any("none of 3x3, stride 1, with whole" in refused.reason for refused in found.refused)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("side", [(13, 10), (32, 32), (5, 37)])
def test_numbers(batch, side):
    module, x = block(batch=batch, side=side)
    compiled = api.compile(module, (x,), threads=2, trials=0, no_log=True)
    assert compiled.report["kernels"]["after"] == 2
    with torch.no_grad():
        want = module(x).numpy()
    got = torch.from_dlpack(compiled(x.numpy())).numpy()
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
    assert compiled.report["verify"]["passed"]
