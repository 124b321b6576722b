"""Operators along a dimension take tensors without one, as PyTorch does."""

import pytest
import torch
from torch import nn

X = torch.tensor(3.5)

CALLS = {
    "softmax": lambda x: torch.softmax(x, 0),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "cumsum": lambda x: torch.cumsum(x, 0),
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "max": lambda x: torch.max(x, 0),
    "sort": lambda x: torch.sort(x, 0),
    "topk": lambda x: torch.topk(x, 1, 0),
    "argmax": lambda x: torch.argmax(x, 0),
    "gather": lambda x: torch.gather(x, 0, torch.tensor(0)),
    "index_select": lambda x: torch.index_select(x, 0, torch.tensor([0])),
    "flip": lambda x: torch.flip(x, [0]),
}


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("name", CALLS)
def test_a_tensor_without_dimensions(assert_matches_eager, name):
    assert_matches_eager(Call(CALLS[name]), X)


def test_other_operators_are_left_alone(assert_matches_eager):
    assert_matches_eager(Call(lambda x: torch.exp(x) + x), X)
