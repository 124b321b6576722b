"""Linking host code for another architecture than this machine's: AArch64, for Jetson."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
from typing import Any

from tvm.support import cc

from tvmfuse.errors import BuildError

_GLIBC = "2.27"  # Jetson Nano's, the oldest


def linker_for(triple: str) -> Any:
    """What TVM's ``export_library`` takes as ``fcompile``; None where this machine's linker serves.

    Parameters
    ----------
    triple
        Of the host, e.g. ``"aarch64-linux-gnu"``.

    Raises
    ------
    BuildError
        No cross compiler is installed; the message names two.
    """
    arch = triple.split("-")[0]
    if arch == platform.machine():
        return None
    found = shutil.which(f"{arch}-linux-gnu-g++")
    compiler: Any = found
    options = ["-shared", "-fPIC"]
    if not found:
        if importlib.util.find_spec("ziglang") is None:
            raise BuildError(
                f"host code for {triple} cannot be linked on this {platform.machine()} machine: "
                f"install {arch}-linux-gnu-g++ (Debian: g++-{arch}-linux-gnu) or the package "
                "ziglang ('tvmfuse[jetson]')"
            )
        compiler = _zig
        options += ["-target", f"{arch}-linux-gnu.{_GLIBC}"]
    return cc.cross_compiler(
        compiler, options=options, output_format="so", get_target_triple=lambda: triple
    )


def _zig(output: str, objects: list[str], options: list[str]) -> None:
    command = [sys.executable, "-m", "ziglang", "c++", "-o", output, *objects, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
