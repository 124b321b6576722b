"""Limits of CPUs and GPUs: figures that follow from the record, and sources for all of them."""

import pytest

from tvmfuse.errors import UnknownNameError
from tvmfuse.hardware import cpu_names, resolve_target
from tvmfuse.hardware.gpus import GPUS
from tvmfuse.hardware.limits import gpu_limits, limits_of


def test_a_named_cpu():
    limits = limits_of(resolve_target("llvm:sapphirerapids", 2))
    assert limits.peak_flops["float32"] == 64 * 2.5e9 * 2
    assert limits.instructions["bfloat16"] == "amx_bf16"
    assert limits.instructions["int8"] == "amx_int8"
    assert limits.tile_bytes == 1024 * 1024  # half of 2 MiB
    assert limits.ridge("float32") == pytest.approx(16.0)
    assert limits.ridge("bfloat16") == pytest.approx(256.0)


def test_what_a_cpu_lacks_is_missing():
    limits = limits_of(resolve_target("llvm:haswell", 1))
    assert "bfloat16" not in limits.instructions and "int8" not in limits.instructions
    assert limits.peak("bfloat16") == limits.peak("float32")  # computed in float32


@pytest.mark.parametrize("name", cpu_names())
def test_every_cpu_has_limits_with_sources(name):
    limits = limits_of(resolve_target(f"llvm:{name}", 1))
    assert limits.ridge("float32") > 0 and limits.accumulators < limits.registers
    assert {"peak", "dram", "cache", "registers", "launch"} <= limits.sources.keys()


def test_more_cores_do_more_and_memory_has_an_end():
    one, many = (limits_of(resolve_target("llvm:haswell", n)) for n in (1, 64))
    assert many.peak("float32") == 64 * one.peak("float32")
    assert many.dram_bytes_per_s == 200e9


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu(name):
    limits = gpu_limits(name)
    assert limits.ridge("float16") >= limits.ridge("float32")
    assert limits.sources and limits.tile_bytes >= 48 * 1024


def test_instructions_follow_from_the_compute_capability():
    assert "bfloat16" not in gpu_limits("t4").instructions
    assert gpu_limits("a100").instructions["bfloat16"] == "mma"
    assert "int8" not in gpu_limits("jetson-nano").instructions
    assert gpu_limits("t4").ridge("float32") == pytest.approx(25.3, abs=0.1)
    assert gpu_limits("h200").ridge("float16") == pytest.approx(206, abs=1)


def test_an_unknown_gpu_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown GPU 'a10'.*'a100'"):
        gpu_limits("a10")
