"""From the text of ``--target`` to a Hardware record."""

from __future__ import annotations

import json
from typing import Any

from tvmfuse.errors import DeviceError, OptionError, UnknownNameError
from tvmfuse.hardware.cpus import (
    FEATURES,
    CpuModel,
    closed_features,
    cpu_model,
    cpu_names,
    select_model,
)
from tvmfuse.hardware.cuda_targets import from_json, gpu_hardware, this_gpu
from tvmfuse.hardware.detect import CpuInfo, detect_cpu, usable_cores
from tvmfuse.hardware.gpu import probe_gpus
from tvmfuse.hardware.gpus import gpu_names, gpu_of
from tvmfuse.hardware.record import Hardware

# Devices that were asked for and that this release cannot build for, with what is missing.
_NOT_YET = {
    "mi210": "gfx90a", "mi250": "gfx90a", "mi300": "gfx942", "mi300x": "gfx942",
}  # fmt: skip
_TRIPLES = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_JSON_KEYS = ("kind", "mcpu", "mattr", "mtriple", "num-cores")
_ACCEPTED = (
    "'llvm' is this machine's CPU, 'llvm:CPU' another one, 'cuda' this machine's GPU; a JSON "
    'target is {"kind": "llvm", "mcpu": "haswell", "num-cores": 4} or '
    '{"kind": "cuda", "arch": "sm_86"}.'
)


def target_names() -> tuple[str, ...]:
    """Every name that ``--target`` takes in this release, besides JSON."""
    return ("llvm", "cuda", *gpu_names(), *(f"llvm:{name}" for name in cpu_names()))


def resolve_target(text: str, threads: int | None = None) -> Hardware:
    """Turn the text of ``--target`` into a Hardware record, without TVM.

    Parameters
    ----------
    text
        ``"llvm"`` (this machine), ``"llvm:CPU"`` with LLVM's name of a CPU, ``"cuda"`` (this
        machine's GPU, or an assumed one: ``Hardware.assumed`` says so), the name of a GPU, or
        a JSON object with ``kind``, ``mcpu`` and, if wanted, ``mattr``, ``mtriple``,
        ``num-cores``; for ``"kind": "cuda"`` with ``arch`` and, if wanted, ``sms``,
        ``l2_cache_size_bytes``, ``host``.
    threads
        Threads a kernel may use; by default all CPUs this process may use. For a GPU those of
        its host.

    Raises
    ------
    UnknownNameError
        For a name that is none of :func:`target_names`.
    OptionError
        For malformed JSON, or ``threads`` that this machine or the JSON contradicts.
    DeviceError
        For a device that cannot be built for yet, or when this machine's CPU cannot be read.
    """
    text = text.strip()
    if threads is not None and threads < 1:
        raise OptionError(f"threads must be at least 1, got {threads}")
    if text.startswith("{"):
        return _from_json(text, threads)
    name = text.lower()
    if name == "llvm":
        return _this_machine(text, threads)
    if name.startswith("llvm:"):
        return _named_cpu(text, name.removeprefix("llvm:"), threads)
    if name == "cuda":
        return this_gpu(text, probe_gpus(), threads)
    if name in gpu_names():
        return gpu_hardware(text, gpu_of(name), threads)
    if name in _NOT_YET:
        raise DeviceError(_not_yet(name))
    raise UnknownNameError("target", text, target_names(), hint=_ACCEPTED)


def _this_machine(text: str, threads: int | None) -> Hardware:
    cpu = detect_cpu()
    if threads is not None and threads > cpu.cores:
        raise OptionError(
            f"{threads} threads asked for, but this process may use {cpu.cores} CPUs only; "
            "more threads than CPUs slow every kernel down"
        )
    return hardware_of(text, cpu, threads)


def hardware_of(text: str, cpu: CpuInfo, threads: int | None = None) -> Hardware:
    """Hardware record of a detected CPU; raises DeviceError for one without a baseline."""
    model = select_model(cpu.arch, cpu.vendor, cpu.flags)
    if model is None:
        raise DeviceError(
            f"this {cpu.arch} CPU lacks the baseline features (asimd); its flags are: "
            + " ".join(sorted(cpu.flags))
        )
    caches = (cpu.l1d_bytes, cpu.l2_bytes, cpu.l3_bytes)
    return _record(text, model, model.implies & cpu.flags, threads or cpu.cores, caches)


def _named_cpu(text: str, cpu: str, threads: int | None) -> Hardware:
    try:
        model = cpu_model(cpu)
    except UnknownNameError:
        raise UnknownNameError("target", text, target_names(), hint=_ACCEPTED) from None
    caches = (model.l1d_bytes, model.l2_bytes, model.l3_bytes)
    return _record(text, model, model.implies, threads or usable_cores(), caches)


def _from_json(text: str, threads: int | None) -> Hardware:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise OptionError(f"the target is not valid JSON: {error}; {_ACCEPTED}") from error
    kind = data.get("kind")
    if kind == "cuda":
        return from_json(text, data, threads)
    if kind != "llvm":
        raise UnknownNameError("target kind", str(kind), ("llvm", "cuda"))
    unknown = sorted(set(data) - set(_JSON_KEYS))
    if unknown:
        raise OptionError(
            f"the JSON target has {', '.join(unknown)}, which cannot be honoured; "
            f"its keys are {', '.join(_JSON_KEYS)}"
        )
    if not isinstance(data.get("mcpu"), str):
        raise OptionError("a JSON target needs 'mcpu', LLVM's name of the CPU, e.g. 'haswell'")
    model = cpu_model(data["mcpu"])
    features = _apply_mattr(model, data.get("mattr", []))
    cores = _json_cores(data.get("num-cores"), threads)
    caches = (model.l1d_bytes, model.l2_bytes, model.l3_bytes)
    triple = data.get("mtriple", _TRIPLES[model.arch])
    if not isinstance(triple, str) or triple.split("-")[0] != model.arch or "linux" not in triple:
        raise OptionError(
            f"mtriple {triple!r} does not fit mcpu {model.name!r}: expected "
            f"{model.arch}-…linux…, e.g. {_TRIPLES[model.arch]!r}"
        )
    return _record(text, model, features, cores, caches, triple)


def _json_cores(num_cores: Any, threads: int | None) -> int:
    if num_cores is None:
        return threads or usable_cores()
    if not isinstance(num_cores, int) or isinstance(num_cores, bool) or num_cores < 1:
        raise OptionError(f"num-cores must be a positive integer, got {num_cores!r}")
    if threads is not None and threads != num_cores:
        raise OptionError(f"the JSON target says num-cores {num_cores}, but threads is {threads}")
    return num_cores


def _apply_mattr(model: CpuModel, mattr: Any) -> frozenset[str]:
    """Linux flags of ``model`` after LLVM's ``+feature`` and ``-feature``."""
    linux_of = {llvm: linux for linux, llvm in FEATURES[model.arch].items()}
    features = set(model.implies)
    if not isinstance(mattr, list):
        raise OptionError(f"mattr must be a list of '+feature' and '-feature', got {mattr!r}")
    for item in mattr:
        sign, name = str(item)[:1], str(item)[1:]
        if sign not in ("+", "-"):
            raise OptionError(f"mattr entries start with '+' or '-', got {item!r}")
        if name not in linux_of:
            raise UnknownNameError(f"{model.arch} feature in mattr", name, linux_of)
        (features.add if sign == "+" else features.discard)(linux_of[name])
    dropped = features - closed_features(model.arch, features) - model.implies
    if dropped:
        raise OptionError(
            f"mattr adds {', '.join(sorted(FEATURES[model.arch][f] for f in dropped))} to "
            f"{model.name} without the features that it rests on (e.g. +avx512f); add those too, "
            "or name a CPU that has them"
        )
    return frozenset(features)


def _record(
    text: str,
    model: CpuModel,
    features: frozenset[str],
    cores: int,
    caches: tuple[int, int, int],
    triple: str | None = None,
) -> Hardware:
    features = closed_features(model.arch, features)
    vector_bytes, registers = _vectors(model.arch, features)
    lacking, extra = model.implies - features, features - model.implies
    llvm_name = FEATURES[model.arch]
    target: dict[str, Any] = {"kind": "llvm", "mcpu": model.name}
    mattr = [f"-{llvm_name[flag]}" for flag in sorted(lacking)]
    mattr += [f"+{llvm_name[flag]}" for flag in sorted(extra)]
    if mattr:
        target["mattr"] = mattr
    target |= {"mtriple": triple or _TRIPLES[model.arch], "num-cores": cores}
    marks = [f"no{mark}" for mark in _key_marks(lacking)] + _key_marks(extra)
    return Hardware(
        name=text,
        key="-".join([model.arch, model.name, *marks, f"{cores}t"]),
        kind="llvm",
        target_json=target,
        features=tuple(sorted(features)),
        cores=cores,
        vector_bytes=vector_bytes,
        vector_registers=registers,
        l1d_bytes=caches[0],
        l2_bytes=caches[1],
        l3_bytes=caches[2],
    )


def _key_marks(flags: frozenset[str]) -> list[str]:
    """Vector features that make records differ, short: every AMX flag counts as ``amx``."""
    matter = {"amx" if f.startswith("amx") else f.replace("_", "") for f in flags
              if f.startswith(("amx", "avx", "fma", "sve", "asimddp", "i8mm", "bf16"))}  # fmt: skip
    return sorted(matter)


def _vectors(arch: str, features: frozenset[str]) -> tuple[int, int]:
    """Bytes and number of the vector registers."""
    if arch == "aarch64":
        return 16, 32
    if "avx512f" in features:
        return 64, 32
    return (32, 16) if "avx2" in features else (16, 16)


def _not_yet(name: str) -> str:
    return (
        f"no kernels can be built for {name!r} ({_NOT_YET[name]}) yet: there are no templates for "
        "AMD's GPUs, TVM's wheel has no ROCm runtime to load an artifact with, and nothing here "
        "could run or check one; NVIDIA's GPUs (--target cuda, t4, a100 …) and CPUs (--target "
        "llvm) can be built for"
    )
