"""Products of two activations: anchors that read transposes and slices in place."""

import pytest
import torch
from torch import nn

from tvmfuse.passes.pipeline import lower
from tvmfuse.schedules.anchor import ATTR, from_text


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def lowered(kit, function, *inputs):
    """Kernels of the lowered module, whose outputs are eager's, and its product's record."""
    module = Lambda(function).eval()
    mod = lower(kit.workload(module, *inputs), kit.HARDWARE).module
    kit.assert_same(kit.run(mod, *[i.numpy() for i in inputs]), kit.eager(module, *inputs))
    found = [from_text(str(f.attrs[ATTR])) for gv, f in mod.functions_items()
             if gv.name_hint.startswith("matmul") and f.attrs and ATTR in f.attrs]  # fmt: skip
    return kit.kernels(mod), found[0] if found else None


A, B = torch.randn(2, 3, 9, 16), torch.randn(2, 3, 20, 16)
FORMS = {
    "bmm": (torch.bmm, (A[0], B[0].mT.contiguous()), False),
    "transposed": (lambda a, b: a @ b.mT, (A, B), True),
    "einsum": (lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b), (A, B), True),
    "two axes": (lambda a, b: a @ b.t(), (A[0, 0], B[0, 0]), True),
    "itself": (lambda a: a @ a.mT, (A,), True),
    "one row": (lambda a, b: a @ b.mT, (A[:, :, :1], B), True),
    "broadcast batch": (lambda a, b: a @ b.mT, (A[:, :1], B[:1]), True),
    "one matrix for all": (lambda a, b: a @ b, (A, B[0, 0].mT.contiguous()), False),
    "heads of a projection": (
        lambda x: x[..., :16].view(2, 9, 2, 8).transpose(1, 2)
        @ x[..., 16:32].view(2, 9, 2, 8).permute(0, 2, 3, 1),
        (torch.randn(2, 9, 48),), True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_one_kernel(kit, form):
    function, inputs, transposed = FORMS[form]
    nodes, a = lowered(kit, function, *inputs)
    assert nodes == ["matmul"]
    assert ((a.y.row, a.y.column != 1) == (1, True)) is transposed
    assert len(a.buffers) == len(inputs)


def test_a_weight_is_a_dense_layer(kit):
    weight = torch.randn(16, 8)
    nodes, a = lowered(kit, lambda x: x @ weight, A)
    assert nodes == ["dense"] and a is None


def test_a_weight_for_each_matrix_is_none(kit):
    weight = torch.randn(3, 16, 8)
    nodes, a = lowered(kit, lambda x: x @ weight, A)
    assert nodes == ["matmul"] and a.y.lead == (0, 128)


def test_vectors_are_left_to_the_stock_lowering(kit):
    nodes, a = lowered(kit, lambda x, y: x @ y, A, torch.randn(16))
    assert nodes == ["matmul"] and a is None


def test_a_transpose_that_is_read_elsewhere_is_stored_too(kit):
    nodes, a = lowered(kit, lambda a, b: (a @ b.mT, b.mT + 1), A, B)
    assert "matmul" in nodes and a.y.row == 1
