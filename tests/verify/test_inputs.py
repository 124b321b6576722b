"""Edge inputs: what each kind is, and when eager is no reference for it."""

import torch
from torch import nn

from tvmfuse.frontend.import_model import import_module
from tvmfuse.verify.inputs import edge_inputs, overflows


def test_kinds_are_what_they_say():
    kinds = edge_inputs((torch.randn(2, 3, 4, 5), torch.tensor([1, 2])), seed=0)
    assert all(torch.equal(inputs[1], torch.tensor([1, 2])) for inputs in kinds.values())
    x = {kind: inputs[0] for kind, inputs in kinds.items()}
    assert abs(float(x["offset"].mean()) - 8e4) < 10 and 0.5 < float(x["offset"].std()) < 2
    assert (x["constant_channels"].amax((2, 3)) == x["constant_channels"].amin((2, 3))).all()
    assert x["constant_channels"].unique().numel() == 6
    assert (x["max"].abs() == torch.finfo(torch.float32).max).all()
    assert float(x["max"].sign().sum()) == 0
    assert int(x["nan"].isnan().sum()) == int(x["inf"].isinf().sum()) == 1


def test_rows_of_a_matrix_are_its_channels():
    rows = edge_inputs((torch.randn(3, 5),), seed=0)["constant_channels"][0]
    assert (rows == rows[:, :1]).all() and rows.unique().numel() == 3


def test_integers_have_no_edges():
    assert set(edge_inputs((torch.tensor([1]),), seed=0)) == {"example"}


def test_only_sums_overflow():
    x = torch.randn(1, 4)
    sums, none = (import_module(m.eval(), (x,)).program for m in (nn.Linear(4, 2), nn.ReLU()))
    assert overflows("max", sums) and not overflows("max", none)
    assert overflows("max", None) and not overflows("large", sums)
