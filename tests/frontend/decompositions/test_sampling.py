import pytest
import torch
from torch.nn import functional as F

X = torch.randn(2, 3, 4, 5, 6, generator=torch.Generator().manual_seed(0))
GRID = torch.rand(2, 3, 2, 4, 3, generator=torch.Generator().manual_seed(1)) * 4 - 2


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [True, False])
def test_volumes(same, mode, padding, align):
    same(
        "grid_sampler_3d.default",
        lambda x: F.grid_sample(x, GRID, mode, padding, align),
        X,
        atol=1e-5,
    )
