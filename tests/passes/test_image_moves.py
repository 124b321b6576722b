"""Layout changes beside a 3x3 convolution join it, and others keep their own kernel."""

import numpy as np
import pytest
import torch
import tvm
from torch import nn

from tvmfuse import api
from tvmfuse.database import TuningLog
from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.planner import make_plan
from tvmfuse.fusion.rules.vertical import EPILOGUE, PROLOGUE, VERTICAL
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import fuse, lower
from tvmfuse.passes.specialize import group_kernels
from tvmfuse.schedules import schedule_by_template, space
from tvmfuse.tuning.task import as_main

HARDWARE = resolve_target("llvm", 2)
RULES = {r.side: r for r in VERTICAL if r.changes_layout}


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
def test_both_join(batch):
    (group,) = plan(batch=batch).groups
    assert group.ops == ("transpose", "conv2d", "add", "relu", "transpose")
    assert {RULES[EPILOGUE].name, RULES[PROLOGUE].name} < set(group.steps)


@pytest.mark.parametrize("side", [EPILOGUE, PROLOGUE])
def test_switched_off_they_stay_apart(side):
    rule = RULES[side]
    found = plan(off=[rule])
    assert len(found.groups) == 2
    assert "the rule is switched off" in {r.reason for r in found.refused if r.rule == rule.name}


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
    assert compiled.report["kernels"]["after"] == 1
    with torch.no_grad():
        want = module(x).numpy()
    got = torch.from_dlpack(compiled(x.numpy())).numpy()
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
    assert compiled.report["verify"]["passed"]


@pytest.mark.parametrize("side", [(13, 10), (5, 37)])
def test_its_own_template_takes_it_and_the_log_holds_what_it_does(side, tmp_path):
    module, x = block(side=side)
    low = lower(import_module(module, (x,)), HARDWARE)
    (group,) = group_kernels(fuse(low, make_plan(low, HARDWARE)).module, HARDWARE)
    (kernel,) = (k for k, v in zip(group.kernels, group.variants, strict=True) if v.moves)
    schedule, template = schedule_by_template(kernel, HARDWARE)
    assert template == "cpu.winograd_rows"
    with TuningLog.open(tmp_path, HARDWARE, True) as log:
        for one in (schedule, *space(kernel, HARDWARE)):
            record = log.commit(as_main(kernel), one.trace, [1e-3])
            tvm.ir.assert_structural_equal(record.schedule(as_main(kernel)).mod, one.mod)
