import pytest
import torch
from torch import nn

from tvmfuse.frontend.constants import ConstantFolder
from tvmfuse.frontend.torch_export import export_program

tvm = pytest.importorskip("tvm")


class Masked(nn.Module):
    """A mask and a bias table as window attention computes them in every call."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1, 1, 9))
        self.register_buffer("index", torch.arange(8).flip(0).reshape(2, 4))

    def forward(self, x):
        mask = x.new_zeros(2, 4)
        mask[:, 1:3] = 1.0
        left, right = self.table[self.index].split(2, dim=1)
        return x.masked_fill(mask > 0, -1.0) + torch.cat([right, left], 1), mask


def test_what_does_not_depend_on_the_input_is_no_operator(assert_matches_eager):
    workload = assert_matches_eager(Masked(), torch.linspace(-1, 1, 8).reshape(2, 4))
    bindings = [b.value for block in workload.module["main"].body.blocks for b in block.bindings]
    found = [v.op.name for v in bindings if isinstance(v, tvm.relax.Call)]
    assert set(found) <= {"relax.where", "relax.add"}


def test_wholly_constant_output(assert_matches_eager):
    class Constant(nn.Module):
        def forward(self, x):
            return torch.arange(3), x + 1

    assert_matches_eager(Constant(), torch.ones(2))


def nodes(module, *inputs):
    program = export_program(module.eval(), inputs).run_decompositions()
    folder = ConstantFolder(program)
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    return [folder.fold(n) for n in calls]


def test_input_dependence_is_respected():
    class Mixed(nn.Module):
        def forward(self, x):
            return x * (torch.ones(2) + 1)

    ones, two, product = nodes(Mixed(), torch.ones(2))
    assert ones.tolist() == [1, 1] and two.tolist() == [2, 2] and product is None


def test_large_expansions_stay_operators():
    class Large(nn.Module):
        def forward(self, x):
            return x + torch.ones(5 * 2**20)

    assert nodes(Large(), torch.ones(1)) == [None, None]
