import copy
import json

import pytest
import torch
from torch import nn

from tvmfuse.signature import Signature, TensorSpec
from tvmfuse.verify import TOLERANCES, compare, edge_inputs, verify
from tvmfuse.workload import Workload


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        nn.init.constant_(self.fc.bias, 0.5)  # seen with a zero input

    def forward(self, x):
        return torch.relu(self.fc(x))


@pytest.fixture
def workload():
    torch.manual_seed(0)
    inputs = (torch.randn(2, 4),)
    signature = Signature(
        (TensorSpec("x", (2, 4), "float32"),),
        (TensorSpec("output_0", (2, 3), "float32"),),
        {"tuple": [{"tensor": 0}]},
        {"tensor": 0},
    )
    return Workload("net", None, signature, Net().eval(), inputs)


def answer(workload, change):
    """A compiled model that is eager but for ``change(output, input)``."""

    def model(x):
        with torch.no_grad():
            return change(workload.reference(x), x)

    return model


def test_faithful_model_passes_on_all_kinds(workload):
    report = verify(answer(workload, lambda y, x: y.numpy()), workload)
    assert report.passed and report.failures() == []
    assert set(report.levels["model"]) == {
        "example", "random", "zeros", "ones", "large", "offset", "constant_channels", "max",
        "denormal", "nan", "inf", "repeated",
    }  # fmt: skip
    assert report.reference == "eager float64"
    assert 0 < report.max_rel_err < 1e-5


def test_report_is_plain_data(workload):
    data = json.loads(json.dumps(verify(answer(workload, lambda y, x: y), workload).to_json()))
    assert {"levels", "passed", "max_abs_err", "max_rel_err"} <= set(data)
    assert data["levels"]["model"]["zeros"]["passed"] is True


WRONG = {
    "scaled by a thousandth": (lambda y, x: y * 1.001, "random"),
    "bias lost": (lambda y, x: torch.where(x.abs().sum() > 0, y, torch.zeros_like(y)), "zeros"),
    "nan becomes a number": (lambda y, x: y.nan_to_num(), "nan"),
    "a number becomes nan": (lambda y, x: torch.where(x.mean() == 1, float("nan"), y), "ones"),
    "infinity is clipped": (lambda y, x: y.clamp(max=1e30), "inf"),
    "saturates": (lambda y, x: y.clamp(max=20.0), "large"),
    "wrong type": (lambda y, x: y.double(), "example"),
    "wrong shape": (lambda y, x: y[None], "example"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_fault_is_found_by_its_input(workload, fault):
    change, kind = WRONG[fault]
    if fault == "infinity is clipped":  # make sure that one output is +inf
        with torch.no_grad():
            workload.reference.fc.weight.abs_()
    report = verify(answer(workload, change), workload)
    assert not report.passed
    assert not report.levels["model"][kind].passed
    assert any(f"{kind} input" in line for line in report.failures())


def test_flushed_denormals_pass():
    tiny = torch.full((3,), 1e-39)
    assert compare([torch.zeros(3)], [tiny], [tiny.double()]).passed
    assert not compare([torch.zeros(3)], [tiny * 1e6], [tiny.double() * 1e6]).passed


def test_nan_for_infinity_is_told_not_failed():
    eager = torch.tensor([float("inf"), 1.0])
    found = compare([torch.tensor([float("nan"), 1.0])], [eager], [eager.double()])
    assert found.passed and found.kind_mismatches == 1


def test_integers_must_be_equal():
    want = torch.tensor([1, 2, 3])
    assert compare([want.clone()], [want], [want]).passed
    found = compare([torch.tensor([1, 2, 4])], [want], [want])
    assert not found.passed and found.reason == "output_0: 1 of 3 values differ"


def test_missing_output():
    assert "0 outputs instead of 1" in compare([], [torch.ones(1)], [torch.ones(1)]).reason


def test_every_tolerance_is_named():
    with pytest.raises(KeyError):
        compare(*[[torch.ones(1).to(torch.float8_e5m2)]] * 3)
    assert TOLERANCES["model"]["float32"] <= 1e-4
    assert TOLERANCES["layer"]["float32"] <= 1e-5
    types = [set(table) for table in TOLERANCES.values()]
    assert all(found == types[0] for found in types)


def test_reused_output_buffer_is_found(workload):
    buffer = torch.empty(2, 3)
    report = verify(answer(workload, lambda y, x: buffer.copy_(y)), workload)
    assert "overwrote" in report.levels["model"]["repeated"].reason


def test_state_between_calls_is_found(workload):
    calls = []
    stateful = answer(workload, lambda y, x: y + (len(calls) >= 8 or calls.append(1) or 0))
    assert not verify(stateful, workload).levels["model"]["repeated"].passed


def test_reference_stays_as_it_was(workload):
    before = copy.deepcopy(workload.reference.state_dict())
    verify(answer(workload, lambda y, x: y), workload)
    after = workload.reference.state_dict()
    assert all(
        torch.equal(before[k], after[k]) and before[k].dtype == after[k].dtype for k in after
    )


def test_reference_that_needs_float32_is_said(workload):
    class Strict(Net):
        def forward(self, x):
            return super().forward(x.float())

    workload = Workload("net", None, workload.signature, Strict().eval(), workload.example_inputs)
    report = verify(answer(workload, lambda y, x: y), workload)
    assert report.passed and report.reference.startswith("eager float32, since float64 fails")


def test_integer_inputs_keep_their_values():
    tokens = (torch.tensor([[1, 5]]),)
    assert edge_inputs(tokens, 0) == {"example": tokens}
    mixed = edge_inputs((tokens[0], torch.ones(2)), 0)
    assert all(torch.equal(kind[0], tokens[0]) for kind in mixed.values())
    assert mixed["nan"][1].isnan().sum() == 1
