"""Every kernel of an artifact is timed, and stands beside its work and the machine's speeds."""

import json

import pytest
import torch
from torch import nn

from tvmfuse import api
from tvmfuse.cli import main
from tvmfuse.diagnose import Speeds, diagnose, measure_speeds, rows_of
from tvmfuse.errors import ArtifactError
from tvmfuse.report.tables import format_diagnosis

SPEEDS = Speeds(flops=1e11, bytes=1e10)


class Twice(nn.Module):
    """Two convolutions whose results stand beside each other, and a product."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 3, padding=1)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        y = torch.cat([self.a(x).relu(), self.b(x).relu()], 1)
        return self.head(y.mean((2, 3)))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("diagnose") / "twice"
    compiled = api.compile(Twice().eval(), (torch.randn(1, 4, 9, 9),), trials=0, no_log=True)
    compiled.save(directory)
    return directory


def test_all_kernels_with_their_work(artifact):
    found = diagnose(artifact, threads=1, seconds=0.05)
    report = json.loads((artifact / "report.json").read_text())
    rows = found["kernels"]
    assert sum(row["calls"] for row in rows) == report["kernels"]["after"]
    assert found["calls"] >= 3 and found["threads"] == 1
    assert [row["us"] for row in rows] == sorted((row["us"] for row in rows), reverse=True)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert all(row["us"] > 0 and row["ops"] and row["gbytes"] > 0 for row in rows)
    assert {op for row in rows for op in row["ops"]} >= {"conv2d", "mean", "relu"}


def test_flops_are_those_of_the_model(artifact):
    work = json.loads((artifact / "report.json").read_text())["work"]
    total = sum(row["flops"] for row in work.values())
    products = 2 * 81 * 8 * 4 * (1 + 9) + 2 * 16 * 5
    assert products < total < 1.2 * products


def test_calls_of_one_kernel_are_summed_and_suffixes_found():
    work = {"kernel_group_a": {"ops": ["f"], "dtype": "float32", "flops": 1e6, "bytes": 1e3}}
    runs = [[("kernel_group_a_at_8_over_1", 1e-4), ("other", 1e-3)]] * 2 + [
        [("kernel_group_a_at_8_over_1", 1e-4), ("kernel_group_a_at_8_over_1", 1e-4), ("other", 1)]
    ]
    other, known = rows_of([runs[-1]], work, SPEEDS)
    assert (other.kernel, other.gflops, other.bound) == ("other", None, "")
    assert known.calls == 2 and known.us == pytest.approx(200)
    assert known.gflops == pytest.approx(10) and known.of_flops == pytest.approx(0.1)
    assert known.bound == "compute"
    assert rows_of(runs, work, SPEEDS)[0].us == pytest.approx(1000)  # the median of the calls


def test_speeds_are_positive_and_plausible():
    speeds = measure_speeds(1)
    assert 1e8 < speeds.flops < 1e14 and 1e8 < speeds.bytes < 1e13


def test_the_table_has_the_rest_in_sum(artifact):
    found = diagnose(artifact, threads=1, seconds=0.05)
    text = format_diagnosis(found, 1)
    assert f"and {len(found['kernels']) - 1} more" in text
    assert "measured now" in text and "conv2d" in text


def test_command(artifact, capsys):
    assert main(["diagnose", str(artifact), "--seconds", "0.05", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"]
    assert main(["diagnose", str(artifact), "--seconds", "0"]) == 1
    assert "must be positive" in capsys.readouterr().err


def test_an_artifact_without_work_is_refused(artifact, tmp_path):
    import shutil

    copy = tmp_path / "old"
    shutil.copytree(artifact, copy)
    report = json.loads((copy / "report.json").read_text())
    del report["work"]
    (copy / "report.json").write_text(json.dumps(report))
    with pytest.raises(ArtifactError, match="has to be compiled again"):
        diagnose(copy, seconds=0.05)
    with pytest.raises(ArtifactError, match="no artifact at"):
        diagnose(tmp_path / "nothing")
