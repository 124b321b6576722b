"""Which writes may be turned into new names, and which may be seen elsewhere."""

import pytest
import torch
from torch import nn

from tvmfuse.frontend.aliases import rewritten
from tvmfuse.frontend.torch_export import export_program


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def found(function):
    return rewritten(export_program(Of(function).eval(), (torch.randn(2, 3),)).graph)


def fresh(x):
    return (x + 1).relu_()


def chain(x):
    y = x * 2
    y.add_(1).relu_()
    return y + y


def view_before(x):
    y = x * 2
    z = y.sum() + y.t().sum()
    return y.relu_() + z


def view_behind(x):
    y = x * 2
    z = y.t()
    y.relu_()
    return z


def through_view(x):
    y = x * 2
    y.t().relu_()
    return y


def argument(x):
    return x.relu_()


@pytest.mark.parametrize("function", [fresh, chain, view_before])
def test_writes_that_nobody_else_sees(function):
    assert found(function) is not None


@pytest.mark.parametrize("function", [view_behind, through_view, argument])
def test_writes_that_another_name_sees(function):
    assert found(function) is None


def test_all_names_of_the_tensor_follow_the_write():
    names = {n.name: [m.name for m in old] for n, old in found(chain).items()}
    assert names == {"add_": ["mul"], "relu_": ["mul", "add_"]}
