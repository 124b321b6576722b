import pytest
import torch
from torch import nn

X = torch.tensor([[3.0, 1.0, 2.0, 1.0], [0.5, -1.0, 7.0, 7.0]])
INDEX = torch.tensor([[0, 1, 1], [1, 0, 1]])


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


CALLS = {
    "sort": lambda x: torch.sort(x, 1),
    "descending": lambda x: torch.sort(x, 0, True)[0],
    "stable": lambda x: torch.sort(x, stable=True, dim=-1),
    "booleans": lambda x: torch.sort(x > 1, stable=True, dim=1),
    "scatter_add": lambda x: x.scatter_add(0, INDEX, x * 10),
    "largest": lambda x: x.scatter_reduce(1, INDEX, x - 3, "amax"),
    "product": lambda x: x.scatter_reduce(0, INDEX, x, "prod"),
    "any": lambda x: (x > 2).scatter_reduce(1, INDEX, x > 0, "amax"),
    "shifts": lambda x: ((x.long() + 2) << 3, (x.long() + 9) >> 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_same_as_eager(assert_matches_eager, name):
    assert_matches_eager(Call(CALLS[name]), X)
