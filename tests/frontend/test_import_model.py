import pytest
import torch
from torch import nn

from tvmfuse.errors import ImportModelError
from tvmfuse.frontend.import_model import import_model, import_module

pytest.importorskip("torchvision")


def test_by_name():
    workload = import_model("squeezenet1_1", shape="1,3,64,64")
    assert workload.name == "squeezenet1_1"
    assert [str(s) for s in workload.signature.inputs] == ["x: float32[1, 3, 64, 64]"]
    assert [str(s) for s in workload.signature.outputs] == ["output_0: float32[1, 1000]"]
    assert workload.provenance["weights"] == "random, seed 0"


def test_small_residual_network_matches_eager(assert_matches_eager):
    from tvmfuse.frontend.weights import randomize

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
            self.head = nn.Linear(4, 5)

        def forward(self, x):
            y = torch.relu_(self.norm(self.conv(x)) + x)
            return self.head(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1))

    module = Block()
    randomize(module, 0)
    assert_matches_eager(module, torch.linspace(-1, 1, 4 * 64).reshape(1, 4, 8, 8))


def test_attention_matches_eager(assert_matches_eager):
    class Attention(nn.Module):
        def forward(self, q, k, v):
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    x = torch.linspace(-1, 1, 64).reshape(1, 2, 8, 4)
    assert_matches_eager(Attention(), x, x * 2, x - 1)


@pytest.mark.parametrize("inputs", [2, 2.5])
def test_python_numbers_are_bound(assert_matches_eager, inputs):
    class Scaled(nn.Module):
        def forward(self, x, k):
            return (x * k, None, x)

    class Fixed(nn.Module):
        def forward(self, x):
            return Scaled()(x, inputs)

    assert_matches_eager(Fixed(), torch.ones(2, 3))
    workload = import_module(Scaled().eval(), (torch.ones(2, 3), inputs))
    assert workload.signature.input_tree == {"tuple": [{"tensor": 0}, {"const": inputs}]}
    assert len(workload.module["main"].params) == 1


def test_pt2_equals_the_module(tmp_path):
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    torch.export.save(torch.export.export(module, (torch.ones(2, 4),)), tmp_path / "net.pt2")
    workload = import_model(str(tmp_path / "net.pt2"))
    assert [s.shape for s in workload.signature.inputs] == [(2, 4)]
    assert workload.provenance == {
        "model": "net.pt2",
        "weights": "from the file",
        "torch": torch.__version__,
    }


def test_lone_tensor_is_one_input():
    assert len(import_module(nn.ReLU().eval(), torch.ones(3)).signature.inputs) == 1


def test_not_a_module():
    with pytest.raises(ImportModelError, match="got a function"):
        import_module(lambda x: x, (torch.ones(3),))
