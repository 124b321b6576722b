"""Norms without weight or bias are imported as ones and zeros."""

import pytest
import torch
from torch import nn

from tvmfuse.frontend.import_model import import_module
from tvmfuse.graph import Graph

BARE = {
    "layer norm": (nn.LayerNorm(8, elementwise_affine=False), (2, 8)),
    "layer norm without bias": (nn.LayerNorm(8, bias=False), (2, 8)),
    "group norm": (nn.GroupNorm(2, 8, affine=False), (2, 8, 3)),
}


@pytest.mark.parametrize("name", BARE)
def test_missing_weights_are_ones_and_zeros(name):
    module, shape = BARE[name]
    graph = Graph(import_module(module.eval(), (torch.randn(shape),)).module)
    call = next(n.value for n in graph.nodes.values() if "norm" in n.op)
    gamma, beta = (a.value.numpy() for a in call.args[1:])
    assert gamma.shape == beta.shape == (8,)
    assert (gamma == 1).all() and (beta == 0).all()


def test_given_weights_and_epsilon_are_kept():
    module = nn.LayerNorm(8, eps=0.25).eval()
    nn.init.normal_(module.weight)
    graph = Graph(import_module(module, (torch.randn(2, 8),)).module)
    call = next(n.value for n in graph.nodes.values() if "norm" in n.op)
    assert (call.args[1].value.numpy() == module.weight.detach().numpy()).all()
    assert float(call.attrs.epsilon) == 0.25
