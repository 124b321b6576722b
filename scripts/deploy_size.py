#!/usr/bin/env python3
"""Measure what a deployed machine needs besides Python, NumPy and the weights, and prove it.

The needed files are copied into a bare virtual environment, the artifact is run there on zeros,
and the sizes of those very files are printed. Fails when it does not run or is over the limit.

usage: python scripts/deploy_size.py build/resnet50 [--limit-mb 15]
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

# Parts of the wheels that only compilers and C++ programs read. (libtvm_ffi_testing.so sounds like
# another, but tvm_ffi's core is linked against it.)
_NOT_NEEDED = shutil.ignore_patterns(
    "__pycache__", "*.pyc", "*.pyi", "include", "3rdparty", "src", "share", "cython",
    "CMakeLists.txt",
)  # fmt: skip
_RUN = """
import importlib.util, sys
import numpy as np
from tvmfuse.runtime import load
from tvmfuse.signature import unflatten
model = load(sys.argv[1])
def zeros(spec):
    if spec.dtype == "bfloat16":
        raise SystemExit("bfloat16 inputs need torch or ml_dtypes; this check has neither")
    return np.zeros(spec.shape, spec.dtype)
inputs = [zeros(spec) for spec in model.signature.inputs]
model(*unflatten(model.signature.input_tree, inputs))
present = [n for n in ("torch", "tvm") if n in sys.modules or importlib.util.find_spec(n)]
if present:
    raise SystemExit(f"the environment is not bare: {present} can be imported")
print(model)
"""


def bytes_of(paths: Iterable[Path]) -> int:
    """Total size of files and folders."""
    total = 0
    for path in paths:
        files = path.rglob("*") if path.is_dir() else [path]
        total += sum(file.stat().st_size for file in files if file.is_file())
    return total


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"package {name} is not installed here")
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin


def fill(site: Path) -> dict[str, list[Path]]:
    """Copy the needed packages into ``site``; NumPy is linked. Returns what counts, by part."""
    parts: dict[str, list[Path]] = {}
    for name, dist in (("tvm_ffi", "apache-tvm-ffi"), ("typing_extensions", "typing-extensions")):
        source = _package(name)
        info = Path(str(distribution(dist).locate_file("."))) / _dist_info(dist)
        parts[dist] = [site / source.name, site / info.name]
        for folder in (source, info):
            _copy(folder, site / folder.name)
    source = _package("tvmfuse")
    _copy(source, site / "tvmfuse")
    parts["tvmfuse"] = [site / "tvmfuse"]
    numpy = _package("numpy")
    for folder in (numpy, numpy.with_name("numpy.libs")):
        if folder.exists():
            (site / folder.name).symlink_to(folder)
    return parts


def _dist_info(dist: str) -> str:
    """Name of the metadata folder, which tvm_ffi reads to find its library."""
    files = distribution(dist).files or []
    return next(str(file.parts[0]) for file in files if file.parts[0].endswith(".dist-info"))


def _copy(source: Path, dest: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, dest, ignore=_NOT_NEEDED)
    else:
        shutil.copyfile(source, dest)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact", type=Path, help="folder that tvmfuse wrote")
    parser.add_argument("--limit-mb", type=float, default=15.0, help="fail above this (default 15)")
    options = parser.parse_args(arguments)
    if not (options.artifact / "manifest.json").is_file():
        parser.error(f"{options.artifact} is not an artifact: it has no manifest.json")
    with tempfile.TemporaryDirectory() as scratch:
        bare = Path(scratch) / "bare"
        venv.create(bare, with_pip=False, symlinks=True)
        python = bare / "bin" / "python"
        site = next(bare.glob("lib/python*/site-packages"))
        parts = fill(site)
        for name in ("model.so", "lib/libtvm_runtime.so", "manifest.json"):
            parts[f"artifact: {name}"] = [options.artifact / name]
        sizes = {name: bytes_of(paths) for name, paths in parts.items()}
        # -B: no bytecode caches, which would be counted nowhere and differ by Python version.
        command = [python, "-I", "-B", "-c", _RUN, options.artifact.resolve()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    weights = bytes_of([options.artifact / "weights.safetensors"])
    return report(sizes, weights, done, options.limit_mb)


def report(
    sizes: dict[str, int],
    weights: int,
    done: subprocess.CompletedProcess[str],
    limit_mb: float,
) -> int:
    """Print the table and the outcome of the run; returns the exit status."""
    total = sum(sizes.values())
    width = max(map(len, sizes))
    for name, size in sizes.items():
        print(f"{name:<{width}}  {size / 1e6:8.2f} MB")
    print(f"{'total':<{width}}  {total / 1e6:8.2f} MB  (limit {limit_mb:g} MB)")
    print(f"{'not counted: weights':<{width}}  {weights / 1e6:8.2f} MB")
    if done.returncode != 0:
        print(f"it does not run in a bare environment:\n{done.stderr}", file=sys.stderr)
        return 1
    print("ran in a bare environment, without torch and without the compiler:")
    print(done.stdout.strip())
    return 0 if total <= limit_mb * 1e6 else 1


if __name__ == "__main__":
    sys.exit(main())
