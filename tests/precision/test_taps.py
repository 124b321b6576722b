"""The float64 run: what widens, and what is data of the compiled model."""

import torch
from torch import nn

from tvmfuse.frontend.torch_export import export_program, functional
from tvmfuse.precision.taps import run_exact


class Placed(nn.Module):
    def forward(self, x):
        places = torch.arange(7, dtype=torch.float32) * 0.1  # 0.1 is another number in float64
        return x * places


def values_of(module, x):
    found = {}
    program = functional(export_program(module.eval(), (x,)))
    run_exact(program, [x], lambda node, value: found.update({node.name: value}))
    return found


def test_values_without_input_keep_their_type_and_widen_where_they_are_used():
    x = torch.randn(7)
    found = values_of(Placed(), x)
    places = torch.arange(7, dtype=torch.float32) * 0.1
    assert torch.equal(found["mul"], places)
    assert found["mul_1"].dtype == torch.float64
    assert torch.equal(found["mul_1"], x.double() * places.double())
