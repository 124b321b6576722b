"""Measured verdicts: a group that loses is split, the next run knows, and the report says why."""

import json

import pytest
import torch
from torch import nn

from tvmfuse import api, cli
from tvmfuse import run as run_module
from tvmfuse.config import CompileOptions
from tvmfuse.database import TuningLog
from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.feasibility import MEASURED
from tvmfuse.fusion.rules.selection import select_rules
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import lower
from tvmfuse.report.progress import Progress
from tvmfuse.settle import Bench, settle
from tvmfuse.tuning.chain import Chain
from tvmfuse.tuning.measure import Failure, Measured

HARDWARE = resolve_target("llvm", 2)
RULES = select_rules()


class Scripted:
    """A measurer for which one kernel takes ``slow`` seconds if it is of so many operators."""

    restarts = drifts = 0

    def __init__(self, slow=(), failing=False):
        self.slow, self.failing, self.calls = slow, failing, 0

    def register(self, key, module, tolerance=None):
        """Takes everything."""

    def measure(self, key, modules, best_s=None):
        self.calls += 1
        parts = next(len(m.links) for m in modules if isinstance(m, Chain))
        for index, module in enumerate(modules):
            if isinstance(module, Chain):
                failed = Failure("run", "out of order") if self.failing else None
                yield index, failed or Measured(1.0, (1.0,))
            else:
                seconds = 2.0 if parts in self.slow else 0.5
                yield index, Measured(seconds, (seconds,))

    def close(self):
        """Nothing to release."""


@pytest.fixture(scope="module")
def lowered():
    """Convolution, bias, activation: one vertical group of three."""
    module = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()).eval()
    return lower(import_module(module, (torch.randn(1, 8, 6, 6),)), HARDWARE)


@pytest.fixture
def open_log(tmp_path):
    def make(write=True):
        return TuningLog.open(tmp_path / HARDWARE.key, HARDWARE, write)

    return make


def ops(settled):
    return [group.ops for group in settled.plan.groups if set(group.ops) & {"conv2d", "relu"}]


WHOLE = [("conv2d", "add", "relu")]


def test_what_pays_stays_fused_and_is_measured_once(lowered, open_log):
    measurer = Scripted()
    with open_log() as log:
        found = settle(lowered, HARDWARE, RULES, log, Bench(measurer))
        assert ops(found) == WHOLE
        assert found.measured == 1 and measurer.calls == 1
        again = settle(lowered, HARDWARE, RULES, log, Bench(measurer))
        assert (again.measured, measurer.calls) == (0, 1)
    ((member, verdict),) = found.verdicts
    assert verdict.fused and verdict.fused_us == pytest.approx(0.5e6) and verdict.parts == 3
    (row,) = [r for r in found.plan.matrix if r.member == member]
    assert row.assessment.verdict == MEASURED and row.assessment.reason == verdict.said
    assert row.to_json()["verdict"] == "measured"


def test_what_loses_is_split_and_what_is_left_is_measured_too(lowered, open_log):
    said = []
    with open_log() as log:
        bench = Bench(Scripted(slow=(3,)), tell=said.append)
        found = settle(lowered, HARDWARE, RULES, log, bench)
    assert ops(found) == [("conv2d", "add"), ("relu", "transpose")]
    assert found.measured == 3 and [v.fused for _, v in found.verdicts] == [False, True, True]
    assert (
        len(said) == 1 and "relu(add(conv2d(x))) is split again: measured: 2000000.0 us" in said[0]
    )
    (refusal,) = [r for r in found.plan.refused if "measured:" in r.reason]
    assert refusal.rule == "relu(conv2d(x, w))"
    assert "1000000.0 us in its 3 parts" in refusal.reason
    assert "vector registers to the stack" in refusal.reason
    assert found.to_json()[0]["fused"] is False  # the split ones first


def test_the_next_run_takes_the_verdict_without_measuring(lowered, open_log):
    with open_log() as log:
        settle(lowered, HARDWARE, RULES, log, Bench(Scripted(slow=(2, 3))))
    with open_log(write=False) as log:
        found = settle(lowered, HARDWARE, RULES, log)
    assert ops(found) == [("conv2d",), ("relu",)]
    assert found.measured == 0 and len(found.verdicts) == 5  # all that are tried lose
    assert ops(settle(lowered, HARDWARE, RULES)) == WHOLE  # without the log: estimates alone


def test_measured_again_where_that_is_asked_for(lowered, open_log):
    with open_log() as log:
        settle(lowered, HARDWARE, RULES, log, Bench(Scripted(slow=(3,))))
        found = settle(lowered, HARDWARE, RULES, log, Bench(Scripted(), again=True))
        assert ops(found) == WHOLE and found.measured == 1
        assert ops(settle(lowered, HARDWARE, RULES, log)) == WHOLE


@pytest.mark.parametrize(
    ("bench", "reason"),
    [
        (lambda: Bench(Scripted(failing=True)), "run: out of order"),
        (lambda: Bench(Scripted(), seconds=-1.0), "no time was left"),
    ],
)
def test_what_cannot_be_measured_stays_as_estimated(lowered, open_log, bench, reason):
    with open_log() as log:
        found = settle(lowered, HARDWARE, RULES, log, bench())
        assert ops(found) == WHOLE and found.verdicts == ()
        ((group, why),) = found.open
        assert why == reason and log.verdict(group) is None


PLANTED = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    width = {width}
    layers = [nn.Linear(width, width, bias=False) for _ in range(7)]
    return nn.Sequential(*layers).eval(), (torch.randn(48, width),)
"""


@pytest.mark.slow
def test_seven_products_forced_into_one_kernel_are_caught(tmp_path, monkeypatch, capsys):
    """A row twice as wide as the registers: the one kernel spills in every step of its sums."""
    width = 2 * HARDWARE.vector_registers * HARDWARE.lanes()
    (tmp_path / "planted_chain.py").write_text(PLANTED.format(width=width))
    rules = tmp_path / "forced.py"
    rules.write_text(
        "from tvmfuse.fusion.rules.vertical import VerticalRule\n"
        'RULES = [VerticalRule("dense", "dense", anchors=True)]\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(run_module, "shipped_log_dir", lambda: None)

    def options(trials):
        return CompileOptions(
            "planted_chain:make", trials=trials, threads=2, rules=rules,
            log_dir=tmp_path / "log", output=tmp_path / "out",
        )  # fmt: skip

    seven = "dense(dense(dense(dense(dense(dense(dense(x)))))))"
    with open("/dev/null", "w") as silent:
        report = api.run(options(1), Progress(silent))
        (lost,) = [v for v in report["verdicts"] if v["rule"] == seven]
        assert lost["fused"] is False and lost["parts"] == 7
        assert lost["spills"] >= HARDWARE.vector_registers
        assert lost["spills"] > 4 * lost["parts_spills"]
        assert lost["intermediate_bytes"] == 6 * 48 * width * 4
        assert report["kernels"]["after"] > 1 and report["verify"]["passed"]
        pair = next(v for v in report["verdicts"] if v["parts"] == 2)  # all of them lose
        assert ("dense(dense(x, w))", pair["said"]) in {
            (r["rule"], r["reason"]) for r in report["refused"]
        }
        monkeypatch.setattr("tvmfuse.settle.compare", None)  # nothing is measured from here on
        again = api.run(options(0), Progress(silent))
    assert again["kernels"] == report["kernels"] and again["verdicts"] == report["verdicts"]
    given = ["planted_chain:make", "--threads", "2", "--rules", str(rules)]
    assert cli.main(["explain", *given, "--log-dir", str(tmp_path / "log")]) == 0
    text = capsys.readouterr().out
    assert f"split at {lost['member']}: {seven}: {lost['said']}" in text
    assert cli.main(["explain", *given, "--no-log", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fusion"]["kernels"] == 1
