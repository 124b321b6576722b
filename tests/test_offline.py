"""Builds for a GPU that is not here: cubins, what is said of them, and what is refused."""

import dataclasses

import pytest
import torch
from torch import nn

import tvmfuse
from tvmfuse import offline
from tvmfuse.codegen.toolkits import find_toolkit
from tvmfuse.config import CompileOptions
from tvmfuse.errors import (
    ArtifactError,
    BuildError,
    DeviceError,
    OptionError,
    VerificationError,
)
from tvmfuse.hardware import resolve_target
from tvmfuse.offline import NOT_RUN, banner, check_gpu_options
from tvmfuse.schedules.cuda import variants


def toolkit_is_missing():
    try:
        find_toolkit(75)
    except BuildError as error:
        return str(error)
    return ""


class Net(nn.Module):
    """A convolution with its epilogue, a pooled branch, a product and a softmax."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 10, 3, padding=1), nn.Linear(10, 7)
        self.norm = nn.BatchNorm2d(10)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)))
        return torch.softmax(self.fc(y.mean((2, 3))), dim=-1)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Report and folder of a small model for a T4."""
    reason = toolkit_is_missing()
    if reason:
        pytest.skip(reason)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("gpu") / "net"
    model = tvmfuse.compile(Net().eval(), (torch.randn(1, 3, 9, 7),), target="t4", trials=0)
    model.save(folder)
    return model.report, folder, model


def test_the_artifact_holds_a_cubin_and_no_text(built):
    _, folder, _ = built
    library = (folder / "model.so").read_bytes()
    assert b"__global__" not in library
    starts = [i for i in range(0, len(library) - 20) if library[i : i + 4] == b"\x7fELF"]
    machines = {int.from_bytes(library[i + 18 : i + 20], "little") for i in starts}
    assert 190 in machines  # EM_CUDA


def test_the_report_says_that_nothing_ran_on_the_device(built):
    report, _, _ = built
    assert report["verify"]["passed"] and report["verify"]["device"] == "not run"
    assert report["verify"]["note"] == NOT_RUN.format(device="t4 (sm_75)")
    assert "estimated" in report["latency_ms"]["kind"] and report["latency_ms"]["median"] > 0
    assert report["gpu"]["state"] == "built offline, not run"
    kernels = report["gpu"]["kernels"]
    assert kernels and all(k["registers"] > 0 and k["spill_bytes"] == 0 for k in kernels)


def test_loading_it_says_what_it_is_and_what_to_do(built):
    _, folder, _ = built
    with pytest.raises(ArtifactError, match=r"kernels for t4 \(sm_75\).*--target llvm"):
        tvmfuse.load(folder)


def test_calling_it_says_why_not(built):
    _, _, model = built
    with pytest.raises(DeviceError, match="built for t4 and cannot be called here"):
        model(torch.randn(1, 3, 9, 7))


def test_a_wrong_fold_is_found_without_the_device(monkeypatch):
    """What the verification on this CPU is for: the same operators, the same packed weights."""
    if toolkit_is_missing():
        pytest.skip(toolkit_is_missing())
    right = variants.dense

    def wrong(anchor):
        variant = right(anchor)
        return dataclasses.replace(variant, pack=lambda w: variant.pack(w) * 1.01)

    monkeypatch.setattr(variants, "dense", wrong)
    with pytest.raises(VerificationError):
        tvmfuse.compile(Net().eval(), (torch.randn(1, 3, 9, 7),), target="t4", trials=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trials": 5}, "--trials 5"),
        ({"time_budget_s": 9.0}, "--time-budget 9"),
        ({"measure": "local"}, "--measure local"),
    ],
)
def test_measuring_is_refused_with_the_way_out(options, said):
    asked = CompileOptions("resnet18", target="t4", **options)
    with pytest.raises(DeviceError, match=f"{said} measures kernels on a GPU.*--trials 0"):
        check_gpu_options(asked, resolve_target("t4"))


def test_a_part_in_pytorch_is_refused():
    asked = CompileOptions("resnet18", target="t4", fallback="eager")
    with pytest.raises(OptionError, match="--fallback eager"):
        check_gpu_options(asked, resolve_target("t4"))


def test_the_banner_names_the_assumed_device(monkeypatch):
    hardware = dataclasses.replace(resolve_target("t4"), assumed="no driver")
    text = banner(hardware)
    assert "NO GPU HERE (no driver)" in text and "ASSUMED DEVICE: t4 (sm_75)" in text
    assert max(map(len, text.splitlines())) <= offline._WIDTH
    assert "NOT RUN" in banner(resolve_target("a100"))
