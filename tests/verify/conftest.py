"""A small model with one of everything, compiled step by step so that faults can be planted."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tvmfuse.build import build
from tvmfuse.choose import choose_kernels
from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.planner import make_plan
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import fuse, lowering
from tvmfuse.passes.specialize import group_kernels
from tvmfuse.run import scheduled_kernels
from tvmfuse.runtime import load
from tvmfuse.verify import verify

HARDWARE = resolve_target("llvm", 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.point = nn.Conv2d(8, 16, 1)
        self.fc = nn.Linear(16 * 25, 5)

    def forward(self, x):
        y = torch.relu(self.bn(self.conv(x)))
        y = torch.tanh(self.point(y))
        return self.fc(y.flatten(1)).softmax(-1)


def workload():
    torch.manual_seed(0)
    net = Net().eval()
    net.bn.running_mean.uniform_(-1, 1)
    net.bn.running_var.uniform_(0.5, 2)
    return import_module(net, (torch.randn(1, 3, 10, 10),))


def compiled(folder, work=None, lower=None, choose=None):
    """Compile with ``lower`` and ``choose`` in the places of the real ones; then verify."""
    work = work or workload()
    low = lower(work) if lower else lowering(work, HARDWARE)[0]
    fused = fuse(low, make_plan(low, HARDWARE))
    groups = group_kernels(fused.module, HARDWARE)
    choices = choose_kernels(groups, None, HARDWARE)
    if choose:
        choose(groups, choices)
    artifact = build(fused, groups, choices, HARDWARE)
    artifact.save(folder, {})
    kernels = scheduled_kernels(groups, choices, artifact)
    model = load(folder, threads=2)
    report = verify(model, work, 0, kernels, HARDWARE.target_json)
    return SimpleNamespace(
        report=report, model=model, workload=work, groups=groups, choices=choices, kernels=kernels
    )


@pytest.fixture(scope="session")
def kit():
    return SimpleNamespace(
        HARDWARE=HARDWARE, compiled=compiled, workload=workload, replace=dataclasses.replace
    )


@pytest.fixture(scope="session")
def right(tmp_path_factory):
    """The model without a fault."""
    return compiled(tmp_path_factory.mktemp("right") / "artifact")
