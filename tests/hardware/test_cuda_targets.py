"""Targets of kind cuda: named, found, assumed, or given as JSON."""

import pytest

from tvmfuse.errors import OptionError, UnknownNameError
from tvmfuse.hardware import resolve_target, targets
from tvmfuse.hardware.cuda_targets import record_of, this_gpu
from tvmfuse.hardware.gpu import FoundGpu, GpuProbe
from tvmfuse.hardware.gpus import gpu_names

T4 = FoundGpu("Tesla T4", 75, {"sms": 40})


@pytest.mark.parametrize("name", gpu_names())
def test_named_gpus_are_targets_with_their_limits(name):
    hardware = resolve_target(name)
    gpu, target = hardware.gpu, hardware.target_json
    assert hardware.kind == target["kind"] == "cuda" and not hardware.assumed
    assert target["arch"] == gpu.arch and gpu.arch in hardware.key
    assert target["registers_per_block"] == gpu.registers_per_block
    assert target["host"]["mcpu"] == gpu.host.mcpu


@pytest.mark.parametrize("name", ["t4", "h100", "jetson-orin", "jetson-xavier", "jetson-nano"])
def test_tvm_takes_the_target(name):
    target_of = pytest.importorskip("tvm.target").Target
    target = target_of(resolve_target(name).target_json)
    assert str(target.attrs["arch"]) == resolve_target(name).gpu.arch
    assert str(target.host.attrs["mcpu"]) == resolve_target(name).gpu.host.mcpu


def test_cuda_is_the_gpu_that_is_here(monkeypatch):
    monkeypatch.setattr(targets, "probe_gpus", lambda: GpuProbe((T4,)))
    hardware = resolve_target("cuda")
    assert hardware.gpu.name == "t4" and not hardware.assumed and hardware.name == "cuda"


def test_cuda_without_a_gpu_is_an_assumed_one_and_says_so(monkeypatch):
    monkeypatch.setattr(targets, "probe_gpus", lambda: GpuProbe((), "no driver"))
    hardware = resolve_target("cuda")
    assert hardware.gpu.name == "t4" and hardware.assumed == "no driver"
    assert hardware.key == resolve_target("t4").key


def test_an_unknown_device_has_its_drivers_figures():
    figures = {
        "sms": 48, "l2_bytes": 1 << 22, "clock_khz": 1_500_000, "memory_clock_khz": 7_000_000,
        "bus_bits": 256, "shared_optin_bytes": 65536, "shared_per_sm_bytes": 65536,
        "registers_per_block": 65536, "threads_per_sm": 1024, "blocks_per_sm": 16,
    }  # fmt: skip
    gpu = record_of(FoundGpu("NVIDIA GeForce RTX 2080", 75, figures))
    assert gpu.name == "rtx-2080" and gpu.sms == 48 and gpu.arch == "sm_75"
    assert gpu.dram_bytes_per_s == 448e9
    assert gpu.peak_flops["float32"] == pytest.approx(48 * 64 * 2 * 1.5e9)


def test_a_cut_down_device_is_not_taken_for_the_whole_one():
    gpu = record_of(FoundGpu("NVIDIA H100 80GB HBM3", 90, {"sms": 114}))
    assert gpu.sms == 114 and gpu.arch == "sm_90a" and gpu.name != "h100"


def test_a_newer_device_than_the_table_still_has_a_record():
    gpu = record_of(FoundGpu("NVIDIA B200", 100, {"sms": 148, "registers_per_block": 65536}))
    assert gpu.arch == "sm_100" and gpu.peak_flops["bfloat16"] > gpu.peak_flops["float32"]


def test_json_targets():
    hardware = resolve_target('{"kind": "cuda", "arch": "sm_86", "sms": 28}')
    assert (hardware.gpu.sms, hardware.gpu.arch) == (28, "sm_86")
    assert hardware.gpu.peak_flops["float32"] == pytest.approx(35.6e12 * 28 / 82)
    host = '{"kind": "llvm", "mcpu": "neoverse-n1"}'
    arm = resolve_target(f'{{"kind": "cuda", "arch": "sm_80", "host": {host}}}')
    assert arm.target_json["host"]["mtriple"] == "aarch64-linux-gnu"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind": "cuda"}', "needs 'arch'"),
        ('{"kind": "cuda", "arch": "ampere"}', "needs 'arch'"),
        ('{"kind": "cuda", "arch": "sm_30"}', "capability 3.0"),
        ('{"kind": "cuda", "arch": "sm_70"}', "no device with arch sm_70"),
        ('{"kind": "cuda", "arch": "sm_86", "max_shared_memory_per_block": 1}', "cannot be hon"),
        ('{"kind": "cuda", "arch": "sm_86", "sms": 0}', "sms must be"),
        ('{"kind": "cuda", "arch": "sm_86", "host": {"kind": "c"}}', "host of a cuda target"),
        ('{"kind": "cuda", "arch": "sm_86", "host": {"kind": "llvm", "mcpu": "m1"}}', "m1"),
    ],
)
def test_json_that_cannot_be_honoured_is_refused(text, message):
    with pytest.raises(OptionError, match=message):
        resolve_target(text)


def test_unknown_names_list_the_gpus():
    with pytest.raises(UnknownNameError, match="'jetson-orin'"):
        resolve_target("jetson-orn")


def test_threads_are_those_of_the_host():
    assert this_gpu("cuda", GpuProbe((), "none"), 3).target_json["host"]["num-cores"] == 3
