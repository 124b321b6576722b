"""The table of GPUs: complete, consistent, and each name looked up."""

import dataclasses

import pytest

from tvmfuse.errors import OptionError, UnknownNameError
from tvmfuse.hardware.gpus import ALIASES, GPUS, capability_of, gpu_names, gpu_of


@pytest.mark.parametrize("gpu", GPUS.values(), ids=list(GPUS))
def test_every_record_is_consistent(gpu):
    assert gpu.arch.startswith(f"sm_{gpu.cc}")
    assert gpu.shared_static_bytes == 48 * 1024 <= gpu.shared_optin_bytes
    assert gpu.shared_optin_bytes <= gpu.shared_per_sm_bytes
    assert gpu.registers_per_block <= gpu.registers_per_sm == 65536
    assert {"float32", "float16"} <= gpu.peak_flops.keys() == gpu.instructions().keys()
    assert {"capability", "sms", "peak", "dram", "l2", "launch", "host"} <= gpu.sources.keys()


def test_tensor_cores_follow_from_the_capability():
    assert {n for n, g in GPUS.items() if not g.has_tensor_cores} == {"jetson-nano", "jetson-tx2"}
    assert {n for n, g in GPUS.items() if "bfloat16" in g.peak_flops} == {
        n for n, g in GPUS.items() if g.cc >= 80
    }


def test_jetson_hosts_are_their_own_cpus():
    assert gpu_of("jetson-orin").host.mcpu == gpu_of("jetson-orin-nano").host.mcpu == "cortex-a78ae"
    assert gpu_of("jetson-xavier").host.mcpu == "carmel"
    assert gpu_of("jetson-tx2").host.mcpu == gpu_of("jetson-nano").host.mcpu == "cortex-a57"
    assert all("aarch64" in g.host.mtriple for n, g in GPUS.items() if n.startswith("jetson"))


def test_aliases_lead_to_records():
    assert {gpu_of(alias).name for alias in ALIASES} == set(ALIASES.values())
    assert gpu_of("A100").dram_bytes_per_s == 1555e9
    assert set(gpu_names()) == set(GPUS) | set(ALIASES)


def test_unknown_names_and_capabilities_are_errors():
    with pytest.raises(UnknownNameError, match=r"unknown GPU 'a10'.*'a100'"):
        gpu_of("a10")
    with pytest.raises(OptionError, match=r"capability 3\.5.*sm_75"):
        capability_of(35)


def test_figures_must_be_positive():
    with pytest.raises(ValueError, match=r"Gpu\.sms must be positive"):
        dataclasses.replace(gpu_of("t4"), sms=0)
