"""Host code for another architecture is linked by a cross compiler, or refused by name."""

import platform

import pytest

from tvmfuse.codegen import linker
from tvmfuse.codegen.linker import linker_for
from tvmfuse.errors import BuildError


def test_this_machines_own_linker_serves_it():
    assert linker_for(f"{platform.machine()}-linux-gnu") is None


def test_without_a_cross_compiler_two_are_named(monkeypatch):
    monkeypatch.setattr(linker.shutil, "which", lambda name: None)
    monkeypatch.setattr(linker.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"install riscv64-linux-gnu-g.*ziglang"):
        linker_for("riscv64-linux-gnu")


def test_a_cross_compiler_is_taken_with_its_triple(monkeypatch):
    monkeypatch.setattr(linker.shutil, "which", lambda name: f"/bin/{name}")
    found = linker_for("riscv64-linux-gnu")
    assert found.get_target_triple() == "riscv64-linux-gnu" and found.output_format == "so"
