import pytest
import torch
from torch import nn

X = torch.tensor([[3.0, 1.0, 2.0], [0.5, -1.0, 7.0]])


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


CALLS = {
    "amax": lambda x: (torch.amax(x), torch.amax(x, 1, True), torch.amax(x, (0, -1))),
    "amin": lambda x: (torch.amin(x), torch.amin(x, 0), torch.aminmax(x, dim=1)),
    "integers": lambda x: (x.long().amax(1), x.long().prod(1), x.long().prod()),
    "booleans": lambda x: ((x > 1).amax(1), (x > 1).amin(0)),
    "prod": lambda x: (x.prod(1, keepdim=True), x.prod(), x.prod(0, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", CALLS)
def test_same_as_eager(assert_matches_eager, name):
    assert_matches_eager(Call(CALLS[name]), X)
