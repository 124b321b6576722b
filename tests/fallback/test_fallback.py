"""``fallback="eager"``: refused operators run in PyTorch, the rest is compiled and agrees."""

import json
import sys

import numpy as np
import pytest
import torch
from torch import nn

import tvmfuse
from tvmfuse.cli import main
from tvmfuse.errors import ArtifactError, InputError, UnsupportedOperatorError, UntraceableError
from tvmfuse.fallback.model import SegmentedModel

X = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


class Refused(nn.Module):
    """An operator that has no converter between two that have, and a shape of values."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x):
        h = torch.relu(self.a(x))
        h = h + torch.fft.rfft(h).abs().sum()
        return {"y": self.b(h), "some": torch.masked_select(x, x > 0)}


class Branch(nn.Module):
    """Control flow that depends on values."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        h = torch.relu(self.a(x))
        h = self.b(h) if h.sum() > 30 else self.a(h) - 1
        return h.tanh()


def refused():
    """The model by name, for the command line."""
    torch.manual_seed(1)
    return Refused(), (X,)


def seeded(module):
    torch.manual_seed(1)
    return module().eval()


@pytest.fixture(scope="module")
def compiled():
    module = seeded(Refused)
    return module, tvmfuse.compile(module, X, fallback="eager", trials=0)


def test_it_agrees_with_eager(compiled):
    module, model = compiled
    with torch.no_grad():
        want, got = module(X), model(X)
    assert set(got) == {"y", "some"}
    for key in want:
        torch.testing.assert_close(got[key], want[key], rtol=1e-5, atol=1e-5)


def test_the_report_says_what_runs_where(compiled):
    report = compiled[1].report
    assert [p["runs_in"] for p in report["parts"]] == ["tvmfuse", "PyTorch", "tvmfuse"]
    why = " ".join(report["parts"][1]["why"])
    assert "_fft_r2c" in why and "test_fallback.py" in why and "masked_select" in why
    assert report["eager_ms"] == report["parts"][1]["ms"] > 0
    assert report["verify"]["passed"]


def test_saved_and_loaded(compiled, tmp_path):
    module, model = compiled
    folder = model.save(tmp_path / "artifact")
    again = tvmfuse.load(folder)
    assert isinstance(again, SegmentedModel) and "PyTorch" in repr(again)
    got = again(X.numpy())
    assert isinstance(got["y"], np.ndarray)
    with torch.no_grad():
        np.testing.assert_allclose(got["y"], module(X)["y"], rtol=1e-5, atol=1e-5)
    model.save(folder)  # over itself: it is an artifact
    with pytest.raises(InputError, match="'x'"):
        again(X[:2])


def test_a_damaged_part_is_named(compiled, tmp_path):
    folder = compiled[1].save(tmp_path / "artifact")
    manifest = json.loads((folder / "manifest.json").read_text())
    part = folder / next(p["path"] for p in manifest["parts"] if not p["compiled"])
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(ArtifactError, match=part.name):
        tvmfuse.load(folder)


def test_the_plain_loader_says_which_one_to_use(compiled, tmp_path):
    folder = compiled[1].save(tmp_path / "artifact")
    with pytest.raises(ArtifactError, match=r"tvmfuse\.load"):
        tvmfuse.runtime.load(folder)


def test_a_wrong_part_is_caught(monkeypatch):
    run = SegmentedModel.run

    def wrong(self, inputs):
        values = run(self, inputs)
        return values | {self.manifest.outputs[0]: values[self.manifest.outputs[0]] * 1.01}

    monkeypatch.setattr(SegmentedModel, "run", wrong)
    with pytest.raises(tvmfuse.errors.VerificationError, match="in 3 parts"):
        tvmfuse.compile(seeded(Refused), X, fallback="eager", trials=0)


def test_without_it_the_model_is_refused():
    with pytest.raises(UnsupportedOperatorError, match="_fft_r2c"):
        tvmfuse.compile(seeded(Refused), X, trials=0)
    with pytest.raises(UntraceableError, match=r"fallback='eager'"):
        tvmfuse.compile(seeded(Branch), X, trials=0)


def test_a_model_that_needs_none_is_compiled_whole():
    model = tvmfuse.compile(nn.Linear(16, 4).eval(), X, fallback="eager", trials=0)
    assert "parts" not in model.report


def test_random_numbers_are_drawn_anew():
    class Noisy(nn.Module):
        def forward(self, x):
            return x.relu() + torch.randn_like(x)

    model = tvmfuse.compile(Noisy().eval(), X, fallback="eager", trials=0)
    assert not torch.equal(model(X), model(X))


@pytest.mark.slow
def test_control_flow_that_depends_on_values(tmp_path):
    module = seeded(Branch)
    model = tvmfuse.compile(module, X, fallback="eager", trials=0)
    assert len(model.report["graphs"]) == 2
    for scale in (1.0, 30.0):  # one input for either branch
        with torch.no_grad():
            want = module(X * scale)
        torch.testing.assert_close(model(X * scale), want, rtol=1e-5, atol=1e-5)
    assert len(model.report["graphs"]) == 3
    assert all("kernels" in graph for graph in model.report["graphs"])
    with pytest.raises(ArtifactError, match="no file can hold"):
        model.save(tmp_path / "artifact")


def test_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "fallback_model", sys.modules[__name__])
    command = ["compile", "--model", "fallback_model:refused", "--trials", "0", "--json",
               "--log-dir", str(tmp_path / "logs"), "--output", str(tmp_path / "out")]  # fmt: skip
    assert main(command) == 1
    assert "_fft_r2c" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main([*command, "--fallback", "eager"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [p["runs_in"] for p in report["parts"]] == ["tvmfuse", "PyTorch", "tvmfuse"]
    assert tvmfuse.load(tmp_path / "out")(X)["y"].shape == (4, 8)
