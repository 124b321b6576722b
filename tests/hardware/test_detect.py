"""Detection reads the kernel's files and says what to pass where it cannot."""

import dataclasses
import os
import platform

import pytest

from tvmfuse.errors import DeviceError
from tvmfuse.hardware import detect
from tvmfuse.hardware.detect import CpuInfo, parse_cpuinfo, read_caches, runnable_here, usable_cores

CPU = CpuInfo("x86_64", "AuthenticAMD", frozenset({"avx2", "fma"}), 4, 32768, 524288, 0)


def test_parse_cpuinfo_reads_the_first_x86_processor():
    text = (
        "processor : 0\nvendor_id\t: GenuineIntel\nmodel name : Rocket Lake\n"
        "flags\t\t: fpu avx2 amx_tile\n\nprocessor : 1\nflags : fpu\n"
    )
    assert parse_cpuinfo(text) == ("GenuineIntel", frozenset({"fpu", "avx2", "amx_tile"}))


def test_parse_cpuinfo_reads_arm_features():
    text = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\n"
    assert parse_cpuinfo(text) == ("", frozenset({"fp", "asimd", "sve"}))


def _cache(folder, index, level, kind, size):
    (folder / f"index{index}").mkdir()
    for name, value in (("level", level), ("type", kind), ("size", size)):
        (folder / f"index{index}" / name).write_text(value + "\n")


def test_read_caches_takes_data_and_unified_caches(tmp_path):
    _cache(tmp_path, 0, "1", "Data", "48K")
    _cache(tmp_path, 1, "1", "Instruction", "64K")
    _cache(tmp_path, 2, "2", "Unified", "2048K")
    _cache(tmp_path, 3, "3", "Unified", "32M")
    assert read_caches(tmp_path) == {"l1d": 49152, "l2": 2097152, "l3": 33554432}


def test_read_caches_falls_back_where_the_kernel_names_none(tmp_path):
    assert read_caches(tmp_path / "absent") == {"l1d": 32768, "l2": 262144, "l3": 0}


def test_usable_cores_honours_affinity(monkeypatch, tmp_path):
    monkeypatch.setattr(detect, "_CPU_QUOTA", tmp_path / "absent")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert usable_cores() == 3


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 2), ("max 100000", 8)])
def test_usable_cores_honours_the_containers_quota(monkeypatch, tmp_path, quota, cores):
    (tmp_path / "cpu.max").write_text(quota + "\n")
    monkeypatch.setattr(detect, "_CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert usable_cores() == cores


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "riscv64")])
def test_other_machines_are_told_what_to_pass(monkeypatch, system, machine):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(DeviceError, match="--target llvm:haswell"):
        detect.detect_cpu()


def test_unreadable_cpuinfo_is_a_device_error(monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(detect, "_CPUINFO", tmp_path / "absent")
    with pytest.raises(DeviceError, match="No such file"):
        detect.detect_cpu()


def test_runnable_here_accepts_what_the_cpu_has():
    assert runnable_here(("avx2",), CPU)


def test_runnable_here_names_every_missing_feature():
    verdict = runnable_here(("avx2", "avx512f", "amx_tile"), CPU)
    assert not verdict
    assert "amx_tile, avx512f" in verdict.reason
    assert verdict.culprit == "amx_tile"


def test_runnable_here_refuses_another_architecture():
    assert not runnable_here(("asimd",), dataclasses.replace(CPU, arch="x86_64"))
