"""Artifacts are verified later, against a model by name: whole ones and those in parts."""

import sys
import types

import pytest
import torch
from torch import nn

import tvmfuse
from tvmfuse import api
from tvmfuse.config import CompileOptions
from tvmfuse.errors import ArtifactError, ImportModelError, OptionError

X = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))


class Whole(nn.Sequential):
    def __init__(self):
        torch.manual_seed(1)
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Whole()

    def forward(self, x):
        return self.inner(x + torch.fft.rfft(x).abs().sum())


def changed(model):
    with torch.no_grad():
        next(model.parameters()).mul_(1.1)
    return model


@pytest.fixture(scope="module", autouse=True)
def models():
    """Models by name."""
    module = types.ModuleType("tvmfuse_models")
    module.whole = lambda: (Whole().eval(), (X,))
    module.parts = lambda: (Parts().eval(), (X,))
    module.changed_whole = lambda: (changed(Whole()).eval(), (X,))
    module.changed_parts = lambda: (changed(Parts()).eval(), (X,))
    module.sum = lambda outputs, data: sum(float(y.sum()) for y in outputs)
    module.data = lambda: [(X, None), (X + 1, None)]
    sys.modules["tvmfuse_models"] = module
    yield
    del sys.modules["tvmfuse_models"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One artifact of each kind, compiled from modules in memory."""
    found = {}
    for name, module in (("whole", Whole()), ("parts", Parts())):
        found[name] = tmp_path_factory.mktemp(name) / "artifact"
        tvmfuse.compile(module.eval(), X, fallback="eager", trials=0).save(found[name])
    return found


def named(model, **change):
    return CompileOptions(f"tvmfuse_models:{model}", **change)


@pytest.mark.parametrize("kind", ["whole", "parts"])
def test_its_own_model_agrees_and_another_does_not(folders, kind):
    metric = ("tvmfuse_models:sum", "tvmfuse_models:data")
    report = api.verify_artifact(folders[kind], against=named(kind), metric=metric)
    assert report["verify"]["passed"], report["verify"]["failures"]
    assert {"model", "metric"} <= set(report["verify"]["levels"])
    wrong = api.verify_artifact(folders[kind], against=named(f"changed_{kind}"))
    assert not wrong["verify"]["passed"] and wrong["verify"]["failures"]


def test_the_layer_level_is_there_too(folders):
    report = api.verify_artifact(folders["whole"], against=named("whole"))
    assert report["verify"]["levels"]["layer"]["example"]["checked"] > 0


def test_other_shapes_are_refused(folders):
    with pytest.raises(ArtifactError, match=r"takes float32\[2, 6\].*takes float32\[3, 6\]"):
        api.verify_artifact(folders["whole"], against=named("whole", batch=3))


def test_an_artifact_from_memory_needs_a_name(folders):
    with pytest.raises(ArtifactError, match="--against"):
        api.verify_artifact(folders["whole"])


def test_a_metric_needs_data(folders):
    with pytest.raises(OptionError, match="--data"):
        api.verify_artifact(folders["whole"], metric=("tvmfuse_models:sum", None))


def test_bisect_and_stability_by_name():
    assert api.bisect_model(named("whole"))["bisect"]["broken"] == {}
    assert api.stability(named("whole"))["troubled"] == {"float16": [], "bfloat16": []}
    with pytest.raises(ImportModelError):
        api.stability(CompileOptions("tvmfuse_absent:model"))
