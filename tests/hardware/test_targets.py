"""--target: what it takes, what it refuses, and that LLVM reads the result as meant."""

import json
import subprocess
import sys

import pytest

from tvmfuse.errors import DeviceError, OptionError, UnknownNameError
from tvmfuse.hardware import targets
from tvmfuse.hardware.cpus import FEATURES, cpu_model
from tvmfuse.hardware.detect import CpuInfo
from tvmfuse.hardware.targets import hardware_of, resolve_target, target_names

KIB = 1024


def machine(vendor, flags, arch="x86_64", cores=2):
    return CpuInfo(arch, vendor, frozenset(flags), cores, 48 * KIB, 2048 * KIB, 0)


def llvm_features(hardware):
    target_of = pytest.importorskip("tvm.target").Target
    from tvm.target.codegen import llvm_get_cpu_features

    return {str(f) for f in llvm_get_cpu_features(target_of(hardware.target_json))}


def test_this_machine_fits_itself():
    hardware = resolve_target("llvm")
    assert hardware.kind == "llvm"
    assert hardware.target_json["num-cores"] == hardware.cores
    assert hardware.key.endswith(f"-{hardware.cores}t")
    assert targets.detect_cpu().flags >= set(hardware.features)


@pytest.mark.parametrize("name", target_names())
def test_every_listed_name_resolves(name):
    hardware = resolve_target(name, threads=1)
    assert hardware.cores == 1
    assert hardware.lanes() in (4, 8, 16)


def test_named_cpu_and_the_same_machine_share_a_key():
    flags = cpu_model("znver4").implies
    assert (
        hardware_of("llvm", machine("AuthenticAMD", flags)).key
        == resolve_target("llvm:znver4", threads=2).key
        == "x86_64-znver4-2t"
    )


def test_hidden_features_are_switched_off_in_llvm_and_marked_in_the_key():
    hidden = {"amx_tile", "amx_int8", "amx_bf16", "avx_vnni", "sha_ni"}
    hardware = hardware_of(
        "llvm", machine("GenuineIntel", cpu_model("sapphirerapids").implies - hidden)
    )
    assert hardware.key == "x86_64-sapphirerapids-noamx-noavxvnni-2t"
    assert "-amx-tile" in hardware.target_json["mattr"]
    assert llvm_features(hardware).isdisjoint({"amx-tile", "amx-int8", "amx-bf16", "avxvnni"})


@pytest.mark.parametrize("name", ["icelake-server", "znver5", "haswell", "neoverse-v1"])
def test_llvm_uses_no_feature_beyond_those_recorded(name):
    model = cpu_model(name)
    table = FEATURES[model.arch]
    for flag in sorted(model.implies - model.needs):
        cpu = machine(model.vendor or "GenuineIntel", model.implies - {flag}, model.arch)
        hardware = hardware_of("llvm", cpu)
        used = llvm_features(hardware) & set(table.values())
        assert used <= {table[f] for f in cpu.flags}, flag
        assert used == {table[f] for f in hardware.features}, flag


@pytest.mark.parametrize(
    ("cpu", "width", "registers"),
    [("x86-64", 16, 16), ("haswell", 32, 16), ("skylake-avx512", 64, 32), ("cortex-a72", 16, 32)],
)
def test_vector_registers(cpu, width, registers):
    hardware = resolve_target(f"llvm:{cpu}")
    assert (hardware.vector_bytes, hardware.vector_registers) == (width, registers)


def test_arm_machine_without_neon_is_refused():
    with pytest.raises(DeviceError, match="asimd"):
        hardware_of("llvm", machine("", {"fp"}, "aarch64"))


def test_json_target():
    text = '{"kind": "llvm", "mcpu": "haswell", "mattr": ["-fma", "+adx"], "num-cores": 6}'
    hardware = resolve_target(text)
    assert hardware.cores == 6
    assert sorted(hardware.target_json["mattr"]) == ["+adx", "-fma"]
    assert "adx" in hardware.features
    assert "fma" not in hardware.features
    assert "fma" not in llvm_features(hardware)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mcpu": None}, "needs 'mcpu'"),
        ({"libs": ["mkl"]}, "libs, which cannot be honoured"),
        ({"num-cores": 0}, "positive integer"),
        ({"num-cores": 3}, "num-cores 3, but threads is 2"),
        ({"mattr": ["fma"]}, "start with"),
        ({"mattr": "+fma"}, "must be a list"),
        ({"mattr": ["+avx512vnni"]}, "rests on"),
        ({"mtriple": "aarch64-linux-gnu"}, "does not fit"),
    ],
)
def test_json_target_that_cannot_be_honoured(change, message):
    data = {"kind": "llvm", "mcpu": "haswell"} | change
    with pytest.raises(OptionError, match=message):
        resolve_target(json.dumps(data), threads=2)


def test_broken_json_is_an_option_error():
    with pytest.raises(OptionError, match="not valid JSON"):
        resolve_target('{"kind": "llvm"')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lvm", "did you mean 'llvm'"),
        ("llvm:znver9", "llvm:znver"),
        ('{"kind": "hexagon"}', "target kind 'hexagon'"),
        ('{"kind": "llvm", "mcpu": "haswel"}', "'haswell'"),
        ('{"kind": "llvm", "mcpu": "haswell", "mattr": ["+avx1024"]}', "avx1024"),
    ],
)
def test_unknown_names_list_the_known(text, message):
    with pytest.raises(UnknownNameError, match=message):
        resolve_target(text)


@pytest.mark.parametrize("name", ["mi210", "mi300"])
def test_devices_that_cannot_be_built_for_say_what_is_missing(name):
    with pytest.raises(DeviceError, match=r"no templates for AMD.*no ROCm runtime"):
        resolve_target(name)


def test_threads_below_one_and_above_the_cpus_are_refused():
    with pytest.raises(OptionError, match="at least 1"):
        resolve_target("llvm", threads=0)
    with pytest.raises(OptionError, match="CPUs only"):
        resolve_target("llvm", threads=100_000)


def test_hardware_imports_no_tvm_and_no_torch():
    code = (
        "import sys; from tvmfuse.hardware import resolve_target; resolve_target('llvm:haswell');"
        "assert not {'tvm', 'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
