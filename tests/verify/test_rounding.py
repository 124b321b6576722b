"""Layers that float32 cannot compute better pass with a note; wrong ones do not."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tvmfuse.frontend.import_model import import_module
from tvmfuse.verify.layers import check_layers
from tvmfuse.verify.rounding import Rounding, moved

LARGE = 5e3  # what makes the sigmoid's sum one of terms in the thousands


class Gate(nn.Module):
    """A sigmoid behind a product, which is ill-conditioned where its input is large."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(48, 8192)

    def forward(self, x):
        gate = torch.sigmoid(self.fc(x.relu()))
        return gate + 1.0


def gate_workload(scale):
    torch.manual_seed(0)
    net = Gate().eval()
    return import_module(net, (torch.randn(1, 48) * scale,))


def values_of(work, order=None, slip=0.0):
    """The layers' values in float32, the sum in another order; the gate is off by ``slip``."""
    net, (x,) = work.reference, work.example_inputs
    order = torch.arange(48) if order is None else order
    with torch.no_grad():
        first = x.relu()
        total = torch.zeros(1, 8192)
        for k in order:
            total = total + first[:, k : k + 1] * net.fc.weight[:, k]
        gate = torch.sigmoid(total + net.fc.bias) + slip
        return {"relu": first, "sigmoid": gate, "add": gate + 1.0}


def check(work, values):
    """The layer level of an artifact whose kernels write these values."""
    layers = [(f"kernel_{name}", name) for name in values]

    def watch(inputs, see):
        for number, value in enumerate(values.values()):
            see(number, layers[number][0], [value])

    model = SimpleNamespace(manifest=SimpleNamespace(layers=layers), watch=watch)
    return check_layers(model, work, work.example_inputs)


def test_ill_conditioned_layer_passes_with_a_note():
    work = gate_workload(LARGE)
    report = check(work, values_of(work, torch.arange(47, -1, -1)))
    line = report.comparison()
    assert line.max_rel_err > line.tolerance  # otherwise there is nothing to allow
    assert line.passed and report.first_diverging is None
    assert "ill-conditioned layers" in line.note and "'sigmoid'" in line.note
    gate, behind = report.results[1:]
    assert gate.ill_conditioned and gate.error <= 2 * gate.own
    assert behind.error < 1e-6  # it is compared with what follows from the gate as computed


@pytest.mark.parametrize(("scale", "slip"), [(1.0, 2e-5), (1.0, 1e-2), (LARGE, 1e-2)])
def test_error_beyond_rounding_diverges_however_the_layer_is_conditioned(scale, slip):
    work = gate_workload(scale)
    report = check(work, values_of(work, slip=slip))
    first = report.first_diverging
    assert first is not None and first.node == "sigmoid" and not first.ill_conditioned
    assert "of eager from the same values" in first.reason
    line = report.comparison()
    assert not line.passed and not line.note


def test_well_conditioned_layers_have_no_note_and_no_second_run(monkeypatch):
    monkeypatch.setattr(Rounding, "errors", lambda *_: pytest.fail("eager was run"))
    work = gate_workload(1.0)
    line = check(work, values_of(work)).comparison()
    assert line.passed and not line.note


def test_own_error_is_that_of_the_values_gone_on_from():
    """The relu of the artifact is another than eager's would be: only what follows it counts."""
    work = gate_workload(1.0)
    nodes = {node.name: node for node in work.program.graph.nodes}
    rounding = Rounding(work.program, list(work.example_inputs))
    other = torch.rand(1, 48)
    rounding.goes_on_from(nodes["relu"], other)
    net = work.reference.double()
    with torch.no_grad():
        exact = torch.sigmoid(net.fc(other.double()))
    net.float()
    largest, spread = rounding.errors(nodes["sigmoid"], exact)
    assert 0.0 < spread < largest < 1e-6


def test_operator_that_eager_lacks_allows_nothing():
    work = gate_workload(1.0)
    node = next(n for n in work.program.graph.nodes if n.name == "sigmoid")
    rounding = Rounding(work.program, [torch.zeros(1, 5)])
    assert rounding.errors(node, torch.zeros(1, 8192, dtype=torch.float64)) == (0.0, 0.0)


def test_last_digits_are_moved_and_nothing_else():
    value = torch.tensor([1.0, -3e4, 0.0, torch.inf, torch.nan, torch.finfo(torch.float32).max])
    runs = [moved(value, torch.Generator().manual_seed(seed)) for seed in range(8)]
    for got in runs:
        assert torch.allclose(got, value, rtol=2**-22, atol=0.0, equal_nan=True)
        assert torch.equal(got[2:4], value[2:4])
        assert bool((got[:2] != value[:2]).all())
    assert any(bool(got[0] > 1.0) for got in runs) and any(bool(got[0] < 1.0) for got in runs)
    assert torch.equal(moved(torch.arange(3), torch.Generator()), torch.arange(3))
