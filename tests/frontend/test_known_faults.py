"""What is refused, and next to it the harmless form that is not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tvmfuse.errors import UnsupportedOperatorError
from tvmfuse.frontend.import_model import import_module


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


IMAGE = torch.linspace(-1, 1, 2 * 8 * 8).reshape(1, 2, 8, 8)


def normed(x):
    """Mean and spread of this batch are results as well."""
    return torch.native_batch_norm(x, None, None, torch.zeros(2), torch.ones(2), True, 0.1, 1e-5)


PAIRS = [
    (lambda x: x + torch.randn(x.shape), lambda x: x + torch.ones(x.shape), "random numbers"),
    (lambda x: F.dropout(x, 0.5), lambda x: F.dropout(x, 0.5, training=False), "random numbers"),
    (normed, lambda x: normed(x)[0], "wrong statistics"),
    (lambda x: x[x > 0], lambda x: torch.where(x > 0, x, 0.0), "not known at compile time"),
]


@pytest.mark.parametrize(("faulty", "sound", "reason"), PAIRS)
def test_refused_with_place_and_reason(faulty, sound, reason, assert_matches_eager):
    with pytest.raises(UnsupportedOperatorError, match=reason) as caught:
        import_module(Lambda(faulty).eval(), (IMAGE,))
    assert "test_known_faults.py" in str(caught.value)
    assert_matches_eager(Lambda(sound), IMAGE)
