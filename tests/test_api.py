"""The main job end to end, on a tiny model: what is written, and what is not when it fails."""

import functools
import io
import json

import numpy as np
import pytest
import torch
from torch import nn

import tvmfuse
from tvmfuse import api
from tvmfuse import run as run_module
from tvmfuse.choose import Choice, choose_kernels
from tvmfuse.config import CompileOptions
from tvmfuse.database import TuningLog
from tvmfuse.errors import (
    ArtifactError,
    ImportModelError,
    InputError,
    OptionError,
    UnknownNameError,
    VerificationError,
)
from tvmfuse.fusion.planner import make_plan
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import fuse, lower
from tvmfuse.passes.specialize import group_kernels, kernel_name
from tvmfuse.report.progress import Progress
from tvmfuse.runtime.timing import time_artifact
from tvmfuse.schedules import default_schedule
from tvmfuse.tuning.task import as_main
from tvmfuse.verify import Comparison, VerifyReport, verify

HARDWARE = resolve_target("llvm", 2)
MODEL = """
import torch
from torch import nn

def make():
    layers = nn.Sequential(
        nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 36, 5),
    )
    return layers.eval(), (torch.randn(1, 16, 6, 6),)
"""
KEYS = {
    "model", "target", "dtype", "latency_ms", "baseline_ms", "peak_memory_bytes", "kernels",
    "fusion", "refused", "trials", "trials_per_s", "wall_s", "verify", "records",
}  # fmt: skip

slow = pytest.mark.slow


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Makes options for the tiny model; short timing, own log, no shipped ones."""
    (tmp_path / "tvmfuse_tiny.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(run_module, "time_artifact", functools.partial(time_artifact, seconds=0.05))
    monkeypatch.setattr(run_module, "shipped_log_dir", lambda: None)

    def make(**change):
        fields = {
            "model": "tvmfuse_tiny:make", "trials": 0, "threads": 2, "weights": "random",
            "log_dir": tmp_path / "log", "output": tmp_path / "out",
        }  # fmt: skip
        return CompileOptions(**{**fields, **change})

    return make


def go(options):
    """Run and return the report and what was said."""
    said = io.StringIO()
    return api.run(options, Progress(said)), said.getvalue()


def agree(directory):
    workload = api.import_model("tvmfuse_tiny:make", weights="random", seed=0)
    report = verify(tvmfuse.load(directory, threads=2), workload, 1)
    assert report.passed, report.failures()


@slow
def test_artifact_and_report(options, tmp_path):
    report, said = go(options())
    assert report == json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(report) >= KEYS
    assert set(report["latency_ms"]) == {"median", "p10", "p90", "kind"}
    assert report["latency_ms"]["kind"] == "measured"
    assert report["latency_ms"]["p10"] <= report["latency_ms"]["median"]
    assert report["baseline_ms"]["eager"] > 0 and report["peak_memory_bytes"] > 1 << 20
    assert set(report["fusion"]) == {"vertical", "horizontal", "diagonal", "compound"}
    assert set(report["wall_s"]) >= {"import", "fuse", "build", "verify"}
    assert report["verify"]["passed"] is True and report["verify"]["max_rel_err"] < 1e-4
    assert 0 < report["kernels"]["after"] < report["kernels"]["before"]
    assert report["records"]["hit"] == 0 and report["records"]["missed"] > 0
    assert report["trials"] == 0 and report["target"] == "llvm"
    assert "weights: " in said
    agree(tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".tvmfuse")) == []


def fused_groups():
    workload = api.import_model("tvmfuse_tiny:make", weights="random", seed=0)
    low = lower(workload, HARDWARE)
    return group_kernels(fuse(low, make_plan(low, HARDWARE)).module, HARDWARE)


@slow
def test_record_in_the_log_is_used(options, tmp_path):
    group = next(g for g in fused_groups() if g.variants)
    variant = choose_kernels([group], None, HARDWARE)[group.name].variant
    module = as_main(group.kernels[variant])
    with TuningLog.open(tmp_path / "log" / HARDWARE.key, HARDWARE, True) as log:
        log.commit(module, default_schedule(module["main"], HARDWARE).trace, [1e-6])
    report, _ = go(options())
    assert report["records"]["hit"] == 1
    assert report["verify"]["passed"]
    agree(tmp_path / "out")


def failed(level="model", diverging=()):
    """A verification report that says no."""
    kinds = {"random": Comparison(False, reason="output_0 is wrong")}
    levels = {"model": {"random": Comparison(True)}} | {level: kinds}
    return VerifyReport(levels, "eager float64", diverging=diverging)


@slow
def test_failing_verification_leaves_the_older_artifact(options, tmp_path, monkeypatch):
    go(options())
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir() if p.is_file()}
    monkeypatch.setattr(run_module, "verify", lambda *_, **__: failed())
    with pytest.raises(VerificationError, match="output_0 is wrong"):
        go(options())
    after = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir() if p.is_file()}
    assert after == before
    agree(tmp_path / "out")


@slow
def test_failing_verification_leaves_nothing(options, tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "verify", lambda *_, **__: failed())
    with pytest.raises(VerificationError, match="no artifact was written"):
        go(options())
    assert not (tmp_path / "out").exists()
    assert not any(p.name.startswith(".tvmfuse") for p in tmp_path.iterdir())


@slow
def test_inexact_variants_give_way(options, tmp_path, monkeypatch):
    """A log says that F(4x4) is fastest; verification refuses it once."""
    group = next(g for g in fused_groups() if len(g.variants) > 1)
    index = next(i for i, v in enumerate(group.variants) if v.name == "winograd4")
    module = as_main(group.kernels[index])
    with TuningLog.open(tmp_path / "log" / HARDWARE.key, HARDWARE, True) as log:
        log.commit(module, default_schedule(module["main"], HARDWARE).trace, [1e-9])
    monkeypatch.setattr("tvmfuse.choose.WEIGHT_GROWTH", 100.0)
    seen = []

    def once(model, *rest, **named):
        seen.append(model)
        return failed() if len(seen) == 1 else verify(model, *rest, **named)

    monkeypatch.setattr(run_module, "verify", once)
    report, said = go(options())
    assert len(seen) == 2
    assert "building again" in said and "output_0 is wrong" in said
    assert report["verify"]["passed"] and report["records"]["hit"] == 0
    agree(tmp_path / "out")


@slow
def test_a_layer_that_is_off_gets_a_variant_that_rounds_less(options, tmp_path, monkeypatch):
    group = next(g for g in fused_groups() if len(g.variants) > 1)
    seen = []

    def choose(groups, log, hardware):
        """F(4x4) as long as it is there."""
        found = choose_kernels(groups, log, hardware)
        for g in groups:
            index = next((i for i, v in enumerate(g.variants) if v.name == "winograd4"), None)
            if index is not None:
                kernel = default_schedule(g.kernels[index], hardware).mod["main"]
                found[g.name] = Choice(index, kernel, "template", None)
        return found

    def once(model, *rest, **named):
        seen.append(model)
        if len(seen) > 1:
            return verify(model, *rest, **named)
        return failed("layer", (kernel_name(group.name),))

    monkeypatch.setattr(run_module, "choose_kernels", choose)
    monkeypatch.setattr(run_module, "verify", once)
    report, said = go(options())
    assert len(seen) == 2 and "variants that round less for 1 kernels" in said
    assert report["verify"]["passed"]
    agree(tmp_path / "out")


def never(*_args, **_options):
    raise AssertionError("work was done")


def test_output_that_is_no_artifact_is_refused_before_any_work(options, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("x")
    monkeypatch.setattr("tvmfuse.fallback.run.load_model", never)
    with pytest.raises(ArtifactError, match="out"):
        go(options())
    assert (tmp_path / "out" / "thesis.tex").read_text() == "x"


def test_unknown_model_leaves_nothing(options, tmp_path):
    with pytest.raises(UnknownNameError, match="nowhere"):
        go(options(model="tvmfuse_tiny:nowhere"))
    assert not (tmp_path / "out").exists()


class Outputs(nn.Module):
    """Returns a dict of a tensor and a tuple."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(8, 4)

    def forward(self, x, y):
        h = self.fc(x)
        return {"sum": h + y, "parts": (h, torch.relu(h))}


@slow
def test_compile_returns_the_module_s_own_structure(options, tmp_path):
    module, inputs = Outputs().eval(), (torch.randn(2, 8), torch.randn(2, 4))
    model = tvmfuse.compile(module, inputs, trials=0, threads=2, log_dir=tmp_path / "log")
    got, want = model(*inputs), module(*inputs)
    assert set(got) == {"sum", "parts"} and isinstance(got["parts"], tuple)
    torch.testing.assert_close(torch.from_dlpack(got["sum"]), want["sum"].detach())
    for a, b in zip(got["parts"], want["parts"], strict=True):
        torch.testing.assert_close(torch.from_dlpack(a), b.detach())
    assert set(model.report) >= KEYS
    saved = model.save(tmp_path / "saved")
    again = tvmfuse.load(saved)(*[i.numpy() for i in inputs])
    np.testing.assert_allclose(np.asarray(again["sum"]), want["sum"].detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ArtifactError, match="module in memory"):
        tvmfuse.verify_artifact(saved, Progress(io.StringIO()))


class Masked(nn.Module):
    def forward(self, x, mask=None, *, scale=1.0):
        return x * scale if mask is None else torch.relu(x * mask) * scale


@slow
@pytest.mark.parametrize("fallback", ["none", "eager"])
def test_keyword_arguments(options, tmp_path, fallback):
    module, (x, mask) = Masked().eval(), torch.randn(2, 4, 8).unbind()
    kwargs = {"scale": 2.0, "mask": mask}
    model = tvmfuse.compile(
        module, (x,), kwargs=kwargs, trials=0, threads=2, log_dir=tmp_path / "log",
        fallback=fallback,
    )  # fmt: skip
    want = module(x, **kwargs)
    torch.testing.assert_close(torch.from_dlpack(model(x, **kwargs)), want)
    again = tvmfuse.load(model.save(tmp_path / "saved"))
    got = again(x.numpy(), scale=2.0, mask=mask.numpy())
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)
    with pytest.raises(InputError, match=r"pass mask=, scale= by keyword"):
        again(x, mask, 2.0)
    with pytest.raises(InputError, match=r"compiled for 2\.0, got 3\.0"):
        again(x, mask=mask, scale=3.0)
    with pytest.raises(InputError, match="mask is missing"):
        again(x, scale=2.0)


@slow
def test_verify_artifact_of_a_named_model(options, tmp_path):
    go(options(seed=3))
    said = tvmfuse.verify_artifact(tmp_path / "out", Progress(io.StringIO()))
    assert said["verify"]["passed"] is True
    assert said["output"] == str(tmp_path / "out")


@slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(options, tmp_path, dtype):
    report, _ = go(options(dtype=dtype, measure="none"))
    assert report["dtype"] == dtype and report["verify"]["passed"] is True
    model = tvmfuse.load(tmp_path / "out", threads=2)
    assert model.manifest.signature.computes == dtype
    assert {s.dtype for s in (*model.signature.inputs, *model.signature.outputs)} == {"float32"}
    header = (tmp_path / "out" / "weights.safetensors").read_bytes()[:4096]
    assert {"float16": b'"F16"', "bfloat16": b'"BF16"'}[dtype] in header
    again = tvmfuse.verify_artifact(tmp_path / "out", Progress(io.StringIO()))
    assert again["verify"]["passed"] is True and again["verify"]["max_rel_err"] > 1e-5


@slow
def test_saving_over_something_else_is_refused(options, tmp_path):
    module = nn.Linear(4, 4).eval()
    model = tvmfuse.compile(module, (torch.randn(1, 4),), trials=0, log_dir=tmp_path / "log")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("x")
    with pytest.raises(ArtifactError):
        model.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "a.txt").read_text() == "x"


def test_compile_refuses_what_is_no_option():
    with pytest.raises(OptionError, match="float16"):
        tvmfuse.compile(nn.Linear(4, 4).eval(), (torch.randn(1, 4),), dtype="float16")
    with pytest.raises(TypeError, match="speed"):
        tvmfuse.compile(nn.Linear(4, 4).eval(), (torch.randn(1, 4),), speed=11)


def test_compile_refuses_what_is_no_module(tmp_path):
    with pytest.raises(ImportModelError, match=r"torch\.nn\.Module"):
        tvmfuse.compile(lambda x: x, (torch.randn(1, 4),), trials=0, log_dir=tmp_path)


def test_tune_has_a_budget_of_its_own(monkeypatch):
    seen = []
    monkeypatch.setattr(api, "compile", lambda *_, **options: seen.append(options))
    api.tune(None, ())
    api.tune(None, (), trials=7)
    assert seen[0]["time_budget_s"] > 0
    assert seen[1] == {"trials": 7}


@slow
def test_resnet18(options, tmp_path):
    report, _ = go(options(model="resnet18", shape=((1, 3, 64, 64),)))
    assert report["verify"]["passed"]
    assert report["kernels"]["after"] < report["kernels"]["before"]
    model = tvmfuse.load(tmp_path / "out", threads=2)
    workload = api.import_model("resnet18", shape="1,3,64,64", weights="random", seed=0)
    assert verify(model, workload, 5).passed


@slow
def test_rules_that_are_switched_off_change_the_artifact_and_are_part_of_its_identity(tmp_path):
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    name = "relu(dense(x, w))"
    arguments = {"trials": 0, "threads": 1, "log_dir": tmp_path / "log"}
    whole = tvmfuse.compile(module, (torch.randn(2, 8),), **arguments)
    apart = tvmfuse.compile(module, (torch.randn(2, 8),), no_rule=(name,), **arguments)
    assert (whole.report["kernels"]["after"], apart.report["kernels"]["after"]) == (1, 2)
    (refused,) = [r for r in apart.report["refused"] if r["rule"] == name]
    assert refused["reason"] == "the rule is switched off"
    (row,) = whole.report["feasibility"]
    assert row["ops"] == ["dense", "add", "relu"] and row["verdict"] in ("ok", "grey")
    saved = json.loads((apart.save(tmp_path / "out") / "manifest.json").read_text())
    assert saved["provenance"]["rules"] == {"off": [name]}


def test_an_unknown_rule_is_refused_before_the_model_is_loaded(options):
    with pytest.raises(UnknownNameError, match="rule or category 'verticle'"):
        api.run(options(no_rule=("verticle",)), Progress(io.StringIO()))
