"""The table of CPUs agrees with TVM's own LLVM, and flags select from it."""

import pytest

from tvmfuse.errors import UnknownNameError
from tvmfuse.hardware.cpus import CPU_MODELS, FEATURES, cpu_model, cpu_names, select_model


def by_name(name):
    return cpu_model(name).implies


@pytest.mark.parametrize(
    ("vendor", "flags", "name"),
    [
        ("AuthenticAMD", by_name("znver5"), "znver5"),
        ("AuthenticAMD", by_name("znver4"), "znver4"),
        ("AuthenticAMD", by_name("znver3"), "znver3"),
        ("AuthenticAMD", by_name("znver2"), "znver2"),
        ("GenuineIntel", by_name("sapphirerapids"), "sapphirerapids"),
        ("GenuineIntel", by_name("sapphirerapids") - {"amx_tile", "amx_int8", "amx_bf16"},
         "sapphirerapids"),
        ("GenuineIntel", by_name("icelake-server"), "icelake-server"),
        ("GenuineIntel", by_name("cooperlake"), "cooperlake"),
        ("GenuineIntel", by_name("cascadelake"), "cascadelake"),
        ("GenuineIntel", by_name("skylake-avx512"), "skylake-avx512"),
        ("GenuineIntel", by_name("haswell"), "haswell"),
        ("SomeoneElse", by_name("znver3"), "haswell"),
        ("GenuineIntel", by_name("x86-64-v2"), "x86-64-v2"),
        ("GenuineIntel", frozenset(), "x86-64"),
    ],
)  # fmt: skip
def test_flags_select_the_model(vendor, flags, name):
    assert select_model("x86_64", vendor, flags).name == name


@pytest.mark.parametrize("name", ["neoverse-v2", "neoverse-v1", "neoverse-n1", "cortex-a72"])
def test_arm_flags_select_the_model(name):
    assert select_model("aarch64", "", by_name(name)).name == name


def test_arm_without_neon_has_no_model():
    assert select_model("aarch64", "", {"fp"}) is None


def test_unknown_cpu_names_the_nearest():
    with pytest.raises(UnknownNameError, match="'cascadelake'"):
        cpu_model("cascadelak")


@pytest.mark.parametrize("name", cpu_names())
def test_the_table_says_what_llvm_assumes(name):
    target_of = pytest.importorskip("tvm.target").Target
    from tvm.target.codegen import llvm_get_cpu_features

    model = cpu_model(name)
    target = target_of({"kind": "llvm", "mcpu": name, "mtriple": f"{model.arch}-linux-gnu"})
    assumed = {str(feature) for feature in llvm_get_cpu_features(target)}
    table = FEATURES[model.arch]
    assert {table[flag] for flag in model.implies} == assumed & set(table.values())


def test_every_model_meets_its_own_needs():
    for model in CPU_MODELS:
        assert model.needs <= model.implies
