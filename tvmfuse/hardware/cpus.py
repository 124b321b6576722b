"""CPU micro-architectures as data: what LLVM assumes of each, and how flags select one.

The names and implied features are LLVM's (checked against TVM's own LLVM by a test); the
cache sizes are the vendors' for server parts and serve cross-compiling only.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tvmfuse.errors import UnknownNameError

# Linux flag -> LLVM feature. Only features that LLVM may use in the code of a kernel, by itself
# or through an intrinsic of ours; `pku`, `xsaves` and the like never appear there.
X86_FEATURES = {
    "pni": "sse3", "ssse3": "ssse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "sse4a": "sse4a",
    "popcnt": "popcnt", "cx16": "cx16", "lahf_lm": "sahf", "abm": "lzcnt", "movbe": "movbe",
    "bmi1": "bmi", "bmi2": "bmi2", "adx": "adx", "3dnowprefetch": "prfchw",
    "aes": "aes", "pclmulqdq": "pclmul", "sha_ni": "sha", "gfni": "gfni", "vaes": "vaes",
    "vpclmulqdq": "vpclmulqdq",
    "avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c", "avx_vnni": "avxvnni",
    "avx512f": "avx512f", "avx512bw": "avx512bw", "avx512cd": "avx512cd",
    "avx512dq": "avx512dq", "avx512vl": "avx512vl", "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi", "avx512_vbmi2": "avx512vbmi2", "avx512_vnni": "avx512vnni",
    "avx512_bitalg": "avx512bitalg", "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx512_bf16": "avx512bf16", "avx512_fp16": "avx512fp16",
    "avx512_vp2intersect": "avx512vp2intersect",
    "amx_tile": "amx-tile", "amx_int8": "amx-int8", "amx_bf16": "amx-bf16",
    "amx_fp16": "amx-fp16",
}  # fmt: skip

ARM_FEATURES = {
    "asimd": "neon", "crc32": "crc", "aes": "aes", "sha2": "sha2", "atomics": "lse",
    "asimdrdm": "rdm", "asimddp": "dotprod", "asimdhp": "fullfp16", "asimdfhm": "fp16fml",
    "i8mm": "i8mm", "bf16": "bf16", "sve": "sve", "sve2": "sve2",
}  # fmt: skip

FEATURES = {"x86_64": X86_FEATURES, "aarch64": ARM_FEATURES}
# What LLVM switches off along with a feature: each of these rests on those at its right.
_RESTS_ON = {
    "ssse3": "pni", "sse4_1": "ssse3", "sse4_2": "sse4_1", "sse4a": "pni", "avx": "sse4_2",
    "avx2": "avx", "fma": "avx", "f16c": "avx", "vaes": "avx2 aes",
    "vpclmulqdq": "avx pclmulqdq", "avx_vnni": "avx2", "avx512f": "avx2 fma f16c",
    "avx512bw": "avx512f", "avx512cd": "avx512f", "avx512dq": "avx512f", "avx512vl": "avx512f",
    "avx512ifma": "avx512f", "avx512_vnni": "avx512f", "avx512_vpopcntdq": "avx512f",
    "avx512_vp2intersect": "avx512f", "avx512vbmi": "avx512bw", "avx512_vbmi2": "avx512bw",
    "avx512_bitalg": "avx512bw", "avx512_bf16": "avx512bw", "avx512_fp16": "avx512bw",
    "amx_int8": "amx_tile", "amx_bf16": "amx_tile", "amx_fp16": "amx_tile",
    "asimddp": "asimd", "asimdrdm": "asimd", "i8mm": "asimd", "bf16": "asimd",
    "asimdfhm": "asimd asimdhp", "sve": "asimdhp", "sve2": "sve",
}  # fmt: skip
_ARM_RESTS_ON = {"aes": "asimd", "sha2": "asimd"}  # on x86 they stand alone

AMD, KIB, MIB = "AuthenticAMD", 1024, 1024 * 1024


@dataclass(frozen=True)
class CpuModel:
    """One value of LLVM's ``mcpu``.

    Parameters
    ----------
    name
        LLVM's name.
    arch
        ``"x86_64"`` or ``"aarch64"``.
    needs
        Linux flags that select this model when a machine is looked at.
    implies
        Linux flags of the features that LLVM switches on for this name.
    l1d_bytes, l2_bytes, l3_bytes
        Typical caches, for cross-compiling.
    vendor
        Only CPUs of this vendor are taken for this model; empty: any.
    """

    name: str
    arch: str
    needs: frozenset[str]
    implies: frozenset[str]
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    vendor: str = ""


def _flags(text: str) -> frozenset[str]:
    return frozenset(text.split())


_V2 = _flags("pni ssse3 sse4_1 sse4_2 popcnt cx16 lahf_lm")
_HASWELL = _V2 | _flags("avx avx2 fma f16c bmi1 bmi2 abm movbe pclmulqdq")
_SKX = _HASWELL | _flags("aes adx 3dnowprefetch avx512f avx512bw avx512cd avx512dq avx512vl")
_CLX = _SKX | _flags("avx512_vnni")
_SUNNY = _flags(
    "sha_ni gfni vaes vpclmulqdq avx512ifma avx512vbmi avx512_vbmi2 avx512_bitalg avx512_vpopcntdq"
)
_ICX = _CLX | _SUNNY
_SPR = _ICX | _flags("avx512_bf16 avx512_fp16 avx_vnni amx_tile amx_int8 amx_bf16")
_ZEN2 = _HASWELL | _flags("aes adx 3dnowprefetch sha_ni sse4a")
_ZEN3 = _ZEN2 | _flags("vaes vpclmulqdq")
_ZEN4 = _ZEN3 | _ICX | _flags("avx512_bf16")
_ZEN5 = _ZEN4 | _flags("avx_vnni avx512_vp2intersect")
_N1 = _flags("asimd crc32 aes sha2 atomics asimdrdm asimddp asimdhp")
_V1 = _N1 | _flags("asimdfhm i8mm bf16 sve")


def _x86(
    name: str, needs: str, implies: frozenset[str], caches: tuple[int, int, int], vendor: str = ""
) -> CpuModel:
    l1d, l2, l3 = caches
    return CpuModel(name, "x86_64", _flags(needs), implies, l1d * KIB, l2 * KIB, l3 * MIB, vendor)


def _arm(name: str, needs: str, implies: frozenset[str], caches: tuple[int, int, int]) -> CpuModel:
    l1d, l2, l3 = caches
    return CpuModel(name, "aarch64", _flags(needs), implies, l1d * KIB, l2 * KIB, l3 * MIB)


# The first whose needs are met is taken, so the order is from the newest to the oldest.
CPU_MODELS = (
    _x86("znver5", "avx512_bf16 avx_vnni", _ZEN5, (48, 1024, 32), AMD),
    _x86("znver4", "avx512_bf16", _ZEN4, (32, 1024, 32), AMD),
    _x86("znver3", "avx2 fma vaes", _ZEN3, (32, 512, 32), AMD),
    _x86("znver2", "avx2 fma sha_ni", _ZEN2, (32, 512, 16), AMD),
    _x86("graniterapids", "amx_fp16", _SPR | {"amx_fp16"}, (48, 2048, 64)),
    _x86("sapphirerapids", "amx_tile", _SPR, (48, 2048, 32)),
    # A virtual machine may hide AMX and keep the rest.
    _x86("sapphirerapids", "avx512_fp16", _SPR, (48, 2048, 32)),
    _x86("icelake-server", "avx512f avx512bw avx512vl avx512_vnni avx512_vbmi2", _ICX,
         (48, 1280, 32)),
    _x86("cooperlake", "avx512f avx512bw avx512vl avx512_vnni avx512_bf16",
         _CLX | {"avx512_bf16"}, (32, 1024, 32)),
    _x86("cascadelake", "avx512f avx512bw avx512vl avx512_vnni", _CLX, (32, 1024, 32)),
    _x86("skylake-avx512", "avx512f avx512bw avx512dq avx512vl", _SKX, (32, 1024, 24)),
    _x86("haswell", "avx2 fma", _HASWELL, (32, 256, 16)),
    _x86("x86-64-v2", "sse4_2 ssse3 popcnt", _V2, (32, 256, 8)),
    _x86("x86-64", "", frozenset(), (32, 256, 4)),
    _arm("neoverse-v2", "sve2 i8mm bf16", _V1 - {"aes", "sha2"} | {"sve2"}, (64, 2048, 32)),
    _arm("neoverse-v1", "sve i8mm bf16", _V1, (64, 1024, 32)),
    _arm("neoverse-n1", "asimd asimddp asimdhp atomics", _N1, (64, 1024, 32)),
    _arm("cortex-a72", "asimd crc32", _flags("asimd crc32 aes sha2"), (32, 1024, 0)),
    # Hosts of Jetson boards, named only: their flags select one of the others.
    _arm("cortex-a78ae", "asimd asimddp asimdhp atomics", _N1, (64, 256, 4)),
    _arm("carmel", "asimd asimdhp atomics asimdrdm", _N1 - {"asimddp"}, (64, 2048, 4)),
    _arm("cortex-a57", "asimd crc32", _flags("asimd crc32 aes sha2"), (32, 2048, 0)),
    _arm("generic", "asimd", _flags("asimd"), (32, 512, 0)),
)  # fmt: skip


def closed_features(arch: str, features: Collection[str]) -> frozenset[str]:
    """Drop the flags whose foundation is missing, as LLVM does."""
    rests_on = _RESTS_ON | (_ARM_RESTS_ON if arch == "aarch64" else {})
    kept = set(features)
    while dropped := {f for f in kept if not kept.issuperset(rests_on.get(f, "").split())}:
        kept -= dropped
    return frozenset(kept)


def cpu_names() -> tuple[str, ...]:
    """Names that ``llvm:NAME`` takes, newest first."""
    return tuple(dict.fromkeys(model.name for model in CPU_MODELS))


def cpu_model(name: str) -> CpuModel:
    """Look up a model by LLVM's name; raises UnknownNameError."""
    for model in CPU_MODELS:
        if model.name == name:
            return model
    raise UnknownNameError("CPU", name, cpu_names())


def select_model(arch: str, vendor: str, flags: Collection[str]) -> CpuModel | None:
    """Return the newest model whose needs ``flags`` meet; None if there is none.

    The model name that the machine reports plays no part: virtual machines report names whose
    features they lack, and the other way round.
    """
    have = frozenset(flags)
    for model in CPU_MODELS:
        if model.arch == arch and model.vendor in ("", vendor) and model.needs <= have:
            return model
    return None
