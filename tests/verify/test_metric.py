"""The user's own metric: equal within a tenth of a percent, or the verification fails."""

import sys
import types

import pytest
import torch
from torch import nn

from tvmfuse.errors import OptionError, UnknownNameError, VerificationError
from tvmfuse.frontend.import_model import import_module
from tvmfuse.verify import verify
from tvmfuse.verify.metric import check_metric, load_metric


@pytest.fixture
def task(monkeypatch):
    """A module with a metric and its data, importable as ``tvmfuse_task``."""
    torch.manual_seed(0)
    module = types.ModuleType("tvmfuse_task")
    module.data = lambda: [(torch.randn(2, 4), torch.ones(2)) for _ in range(3)]
    module.mean = lambda outputs, data: sum(
        float((y.sum(1) * d).sum()) for y, d in zip(outputs, data, strict=True)
    )
    module.zero = lambda outputs, data: 0
    module.lost = lambda outputs, data: float("nan")
    module.broken = lambda outputs, data: outputs[7]
    module.number = 3
    monkeypatch.setitem(sys.modules, "tvmfuse_task", module)
    return module


@pytest.fixture
def workload():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    return import_module(net, (torch.randn(2, 4),))


def scaled(workload, factor):
    """A compiled model that is eager, times ``factor``, as NumPy arrays."""
    return lambda x: (workload.reference(x) * factor).detach().numpy()


@pytest.mark.parametrize(("factor", "passed"), [(1.0, True), (1.0009, True), (1.002, False)])
def test_a_tenth_of_a_percent(task, workload, factor, passed):
    metric = load_metric("tvmfuse_task:mean", "tvmfuse_task:data")
    (found,) = check_metric(scaled(workload, factor), workload, metric).values()
    assert found.passed is passed and found.checked == 3
    assert ("more than 0.1% apart" in found.reason) is not passed


def test_the_metric_is_a_level_of_verification(task, workload):
    metric = load_metric("tvmfuse_task:mean", "tvmfuse_task:data")
    report = verify(scaled(workload, 1.002), workload, metric=metric)
    assert any(line.startswith("metric, tvmfuse_task:mean") for line in report.failures())
    assert "metric" in report.to_json()["levels"]


def test_equal_zeros_pass(task, workload):
    metric = load_metric("tvmfuse_task:zero", "tvmfuse_task:data")
    assert check_metric(scaled(workload, 1), workload, metric)["tvmfuse_task:zero"].passed


@pytest.mark.parametrize(
    ("name", "said"), [("lost", "nothing to compare with"), ("broken", "IndexError")]
)
def test_metrics_that_give_no_number(task, workload, name, said):
    metric = load_metric(f"tvmfuse_task:{name}", "tvmfuse_task:data")
    with pytest.raises(VerificationError, match=said):
        check_metric(scaled(workload, 1), workload, metric)


def test_batches_from_a_file(task, tmp_path):
    torch.save(task.data(), tmp_path / "data.pt")
    metric = load_metric("tvmfuse_task:mean", str(tmp_path / "data.pt"))
    assert len(metric.batches) == 3 and metric.batches[0][0][0].shape == (2, 4)


@pytest.mark.parametrize(
    ("metric", "data", "said"),
    [
        ("tvmfuse_task:mean", None, "belong together"),
        (None, "tvmfuse_task:data", "belong together"),
        ("mean", "tvmfuse_task:data", "is not package.module:name"),
        ("tvmfuse_nowhere:mean", "tvmfuse_task:data", "cannot import"),
        ("tvmfuse_task:number", "tvmfuse_task:data", "cannot be called"),
        ("tvmfuse_task:mean", "absent.pt", "no such file"),
        ("tvmfuse_task:mean", "builtins:list", "holds no batch"),
        ("tvmfuse_task:mean", "tvmfuse_task:mean", "failed with TypeError"),
    ],
)
def test_refused_options(task, metric, data, said):
    with pytest.raises(OptionError, match=said):
        load_metric(metric, data)


def test_misspelt_metric_names_the_nearest(task):
    with pytest.raises(UnknownNameError, match="'mean'"):
        load_metric("tvmfuse_task:maen", "tvmfuse_task:data")


def test_nothing_given_is_no_metric():
    assert load_metric(None, None) is None
