"""Which calls become one simple call, and which need a trace to tell."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tvmfuse.frontend import torch_export
from tvmfuse.frontend.decompositions import decompositions
from tvmfuse.frontend.simple_calls import simple_form, table_of
from tvmfuse.frontend.torch_export import export_program

ATEN = torch.ops.aten


class Called(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call
        self.weight = nn.Parameter(torch.randn(4, 4, 3, 3))

    def forward(self, x):
        return self.call(x * 1.0, self.weight)


def form(call, shape=(2, 4, 6, 6)):
    """The simple form of the last call of an exported function."""
    program = export_program(Called(call).eval(), (torch.randn(shape),))
    node = [n for n in program.graph.nodes if n.op == "call_function"][-1]
    table = table_of(torch_export._KEPT, decompositions())
    return simple_form(node.target, node.args, node.kwargs, table)


def _last(x):
    return x.contiguous(memory_format=torch.channels_last)


def norm(x, training):
    return F.batch_norm(x, torch.zeros(4), torch.ones(4), training=training)


@pytest.mark.parametrize(
    ("call", "operator", "pick"),
    [
        (lambda x, w: torch.relu(x), ATEN.relu.default, None),
        (lambda x, w: x.relu_(), ATEN.relu.default, None),
        (lambda x, w: x.add_(1.0), ATEN.add.Tensor, None),
        (lambda x, w: F.hardswish(x, inplace=True), ATEN.hardswish.default, None),
        (lambda x, w: F.conv2d(x, w), ATEN.conv2d.default, None),
        (lambda x, w: torch.cat([x, x], 1), ATEN.cat.default, None),
        (lambda x, w: norm(x, False), ATEN._native_batch_norm_legit_no_training.default, 0),
        (lambda x, w: F.adaptive_avg_pool2d(x, 1), ATEN.mean.dim, None),
        (lambda x, w: x.flatten(1), ATEN.view.default, None),
        (lambda x, w: x.reshape(2, -1), ATEN.view.default, None),
        (lambda x, w: x.transpose(1, -1), ATEN.permute.default, None),
        (lambda x, w: x[:, 1], ATEN.select.int, None),
        (lambda x, w: torch.dropout(x, 0.5, False), None, None),
    ],
    ids=[
        "plain",
        "written",
        "written sum",
        "written, in the table",
        "kept",
        "left alone",
        "norm",
        "mean",
        "flatten",
        "reshape",
        "transpose",
        "view",
        "dropout",
    ],
)
def test_calls_with_one_simple_form(call, operator, pick):
    found = form(call)
    assert found is not None and (found.target, found.pick) == (operator, pick)


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (lambda x, w: F.conv2d(x, w), (4, 6, 6)),  # a sample without a batch: ours takes it apart
        (lambda x, w: x.sinh(), (2, 4)),
        (lambda x, w: F.adaptive_avg_pool2d(x, 3), (2, 4, 6, 6)),
        (lambda x, w: F.adaptive_avg_pool2d(_last(x), 1), (2, 4, 6, 6)),
        (lambda x, w: _last(x).flatten(1), (2, 4, 6, 6)),
        (lambda x, w: x.reshape(2, 4), (2, 4)),
        (lambda x, w: x.flatten(), (4,)),
        (lambda x, w: norm(x, True), (2, 4, 6, 6)),
        (lambda x, w: torch.dropout(x, 0.5, True), (2, 4)),
        (lambda x, w: x.normal_(), (2, 4)),
    ],
    ids=[
        "one sample",
        "ours",
        "pooling",
        "mean of channels last",
        "flatten by copy",
        "no reshape",
        "no flatten",
        "statistics",
        "random choice",
        "random",
    ],
)
def test_calls_that_only_a_trace_can_tell(call, shape):
    assert form(call, shape) is None
