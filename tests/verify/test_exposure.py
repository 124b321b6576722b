"""Whether outputs show where NaN stood is known before anything is built."""

import pytest
import torch
from torch import nn

from tvmfuse.frontend.import_model import import_module
from tvmfuse.graph import Graph
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import lower
from tvmfuse.verify.exposure import reaches_output, shows_positions

HARDWARE = resolve_target("llvm", 2)
X = torch.randn(1, 4, 12, 12)


def conv():
    return nn.Conv2d(4, 4, 3, padding=1)


CLASSIFIER = nn.Sequential(
    conv(), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
)
DENOISER = nn.Sequential(conv(), nn.ReLU(), conv())


def shown(module):
    workload = import_module(module.eval(), (X,))
    low = lower(workload, HARDWARE)
    convolutions = [n.name for n in Graph(low.module).nodes.values() if n.op == "conv2d"]
    assert convolutions
    return shows_positions(workload, low, convolutions, 0), reaches_output(
        Graph(low.module), convolutions
    )


@pytest.mark.parametrize(("module", "expected"), [(CLASSIFIER, False), (DENOISER, True)])
def test_only_an_image_shows_positions(module, expected):
    assert shown(module) == (expected, expected)
