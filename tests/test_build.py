"""Choosing schedules, compiling and saving: records are used, and what cannot be is said."""

import numpy as np
import pytest
import torch
from torch import nn

from tvmfuse import build as build_module
from tvmfuse import choose
from tvmfuse.build import build
from tvmfuse.choose import choose_kernels
from tvmfuse.database import TuningLog
from tvmfuse.errors import ArtifactError, BuildError
from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.planner import make_plan
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.footprint import Footprint
from tvmfuse.passes.pipeline import fuse, lower
from tvmfuse.passes.specialize import group_kernels
from tvmfuse.runtime import load
from tvmfuse.schedules import default_schedule
from tvmfuse.tuning.task import as_main

HARDWARE = resolve_target("llvm", 2)


class Tiny(nn.Module):
    """Two equal 3x3 convolutions (which Winograd can take) and a classifier."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.b(torch.relu(self.a(x)))).mean((2, 3)))


@pytest.fixture(scope="module")
def tiny():
    """Workload, fused workload and groups."""
    workload = import_module(Tiny().eval(), (torch.randn(1, 16, 6, 6),), "tiny")
    low = lower(workload, HARDWARE)
    fused = fuse(low, make_plan(low, HARDWARE))
    return workload, fused, group_kernels(fused.module, HARDWARE)


def first(groups):
    return next(g for g in groups if len(g.variants) > 1)


def log_with(folder, kernel, seconds, schedule=None):
    """A log with one record of ``kernel``, by its template's schedule."""
    module = as_main(kernel)
    trace = (schedule or default_schedule(module["main"], HARDWARE)).trace
    with TuningLog.open(folder, HARDWARE, True) as log:
        log.commit(module, trace, [seconds])
    return TuningLog.open(folder, HARDWARE, False)


def agree(model, workload):
    x = workload.example_inputs[0]
    with torch.no_grad():
        want = workload.reference(x).numpy()
    got = np.asarray(model(x.numpy()))
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


def test_without_a_log_templates_serve(tiny):
    _, _, groups = tiny
    chosen = choose_kernels(groups, None, HARDWARE)
    assert set(chosen) == {g.name for g in groups}
    assert all(c.origin.startswith("cpu.") and c.seconds is None for c in chosen.values())


def test_equal_groups_share_one_choice():
    """Of four convolutions only the last one changes the layout as well."""
    layers = [m for _ in range(4) for m in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]
    low = lower(import_module(nn.Sequential(*layers).eval(), (torch.randn(1, 16, 6, 6),)), HARDWARE)
    groups = group_kernels(fuse(low, make_plan(low, HARDWARE)).module, HARDWARE)
    chosen = choose_kernels(groups, None, HARDWARE)
    convs = [chosen[g.name] for g in groups if len(g.variants) > 1]
    assert len(convs) == 4 and convs[0] is convs[1] is convs[2]


@pytest.mark.parametrize("variant", [0, 1, 2])
def test_measured_variant_is_taken(tiny, tmp_path, monkeypatch, variant):
    monkeypatch.setattr(choose, "WEIGHT_GROWTH", 100.0)
    _, _, groups = tiny
    group = first(groups)
    with log_with(tmp_path / "log", group.kernels[variant], 1e-5) as log:
        chosen = choose_kernels(groups, log, HARDWARE)[group.name]
    assert (chosen.variant, chosen.origin, chosen.seconds) == (variant, "log", 1e-5)


def test_fastest_record_of_all_variants_wins(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(choose, "WEIGHT_GROWTH", 100.0)
    _, _, groups = tiny
    group = first(groups)
    for variant, seconds in enumerate((3e-5, 1e-5, 2e-5)):
        log_with(tmp_path / "log", group.kernels[variant], seconds).close()
    with TuningLog.open(tmp_path / "log", HARDWARE, False) as log:
        assert choose_kernels(groups, log, HARDWARE)[group.name].variant == 1


def test_weights_stay_within_the_bound(tiny, monkeypatch):
    _, _, groups = tiny
    for growth in (1.0, 1.5, 3.0, 100.0):
        monkeypatch.setattr(choose, "WEIGHT_GROWTH", growth)
        chosen = choose_kernels(groups, None, HARDWARE)
        anchored = [g for g in groups if g.variants]
        packed = sum(g.variants[chosen[g.name].variant].weight_bytes for g in anchored)
        least = sum(min(v.weight_bytes for v in g.variants) for g in anchored)
        assert packed <= growth * least


def test_record_that_does_not_apply_is_left_out_and_told(tiny, tmp_path):
    """A trace of another kernel stands in the log under this one's name."""
    _, _, groups = tiny
    group = first(groups)
    other = next(g for g in groups if not g.variants)
    foreign = default_schedule(as_main(other.kernels[0])["main"], HARDWARE)
    with log_with(tmp_path / "log", group.kernels[0], 1e-6, foreign) as log:
        chosen = choose_kernels(groups, log, HARDWARE)[group.name]
    assert chosen.origin != "log" and chosen.seconds is None
    assert "does not apply to its own workload" in chosen.note and "--retune" in chosen.note


@pytest.mark.slow
def test_artifact_runs_and_agrees(tiny, tmp_path):
    workload, fused, groups = tiny
    choices = choose_kernels(groups, None, HARDWARE)
    artifact = build(fused, groups, choices, HARDWARE)
    assert artifact.calls == len(groups)
    assert artifact.kernels == len({id(c.kernel) for c in choices.values()})
    manifest = artifact.save(tmp_path / "tiny", {"model": "tiny"})
    assert manifest.kernels == artifact.kernels
    model = load(tmp_path / "tiny", threads=2)
    assert model.manifest.provenance["model"] == "tiny"
    agree(model, workload)


@pytest.mark.slow
@pytest.mark.parametrize("variant", [0, 1, 2])
def test_every_variant_builds_and_agrees(tiny, tmp_path, monkeypatch, variant):
    monkeypatch.setattr(choose, "WEIGHT_GROWTH", 100.0)
    workload, fused, groups = tiny
    with log_with(tmp_path / "log", first(groups).kernels[variant], 1e-5) as log:
        choices = choose_kernels(groups, log, HARDWARE)
    build(fused, groups, choices, HARDWARE).save(tmp_path / "a", {})
    agree(load(tmp_path / "a", threads=2), workload)


@pytest.mark.slow
def test_kernels_that_return_several_tensors_are_scheduled_too(tmp_path):
    class Halves(nn.Module):
        def forward(self, x):
            a, b = x.split(8, 1)
            return torch.relu(b) + a, x.sort(-1).values

    workload = import_module(Halves().eval(), (torch.randn(3, 16),), "halves")
    low = lower(workload, HARDWARE)
    fused = fuse(low, make_plan(low, HARDWARE))
    groups = group_kernels(fused.module, HARDWARE)
    artifact = build(fused, groups, choose_kernels(groups, None, HARDWARE), HARDWARE)
    artifact.save(tmp_path / "a", {})
    x = workload.example_inputs[0]
    for got, want in zip(load(tmp_path / "a")(x.numpy()), Halves()(x), strict=True):
        assert np.array_equal(np.asarray(got), want.numpy())


def test_tvm_that_cannot_compile_is_told(tiny, monkeypatch):
    _, fused, groups = tiny

    def fail(module):
        raise RuntimeError("no such intrinsic")

    monkeypatch.setattr(build_module, "to_executable_form", fail)
    choices = choose_kernels(groups, None, HARDWARE)
    with pytest.raises(BuildError, match="cannot compile tiny for llvm: no such intrinsic"):
        build(fused, groups, choices, HARDWARE)


class NoCompiler:
    """An executable where no C++ compiler can be found."""

    def export_library(self, path, fcompile=None):
        raise OSError("g++: not found")


def test_missing_linker_is_told_and_leaves_nothing(tiny, tmp_path):
    workload, _, _ = tiny
    artifact = build_module.Artifact(
        NoCompiler(), (), workload, HARDWARE, 0, 0, Footprint(0, 0, 0, 0)
    )
    with pytest.raises(BuildError, match=r"a C\+\+ compiler .* is needed where models are comp"):
        artifact.save(tmp_path / "a", {})
    assert not (tmp_path / "a").exists()


def test_save_refuses_a_folder_of_something_else(tiny, tmp_path):
    _, fused, groups = tiny
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.tex").write_text("x")
    artifact = build(fused, groups, choose_kernels(groups, None, HARDWARE), HARDWARE)
    with pytest.raises(ArtifactError):
        artifact.save(tmp_path / "a", {})
    assert (tmp_path / "a" / "thesis.tex").read_text() == "x"
