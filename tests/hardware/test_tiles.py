"""Tile registers count only where Linux lends them."""

import subprocess
import sys

import pytest

from tvmfuse.hardware import detect, detect_cpu, tiles
from tvmfuse.hardware.tiles import request_tiles, without_unlent_tiles

FLAGS = frozenset({"avx2", "amx_tile", "amx_bf16", "amx_int8"})


@pytest.mark.parametrize(("lent", "left"), [(True, FLAGS), (False, {"avx2"})])
def test_flags_of_tiles_that_are_not_lent_are_dropped(monkeypatch, lent, left):
    monkeypatch.setattr(tiles, "request_tiles", lambda: lent)
    assert without_unlent_tiles(FLAGS) == left


def test_a_cpu_without_tiles_is_not_asked_for_them(monkeypatch):
    monkeypatch.setattr(tiles, "request_tiles", lambda: pytest.fail("asked"))
    assert without_unlent_tiles({"avx2"}) == {"avx2"}


def test_detection_drops_them(monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text("vendor_id : GenuineIntel\nflags : avx2 amx_tile amx_bf16\n")
    monkeypatch.setattr(detect, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(detect.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(tiles, "request_tiles", lambda: False)
    assert detect_cpu().flags == {"avx2"}


@pytest.mark.parametrize(("platform", "machine"), [("darwin", "x86_64"), ("linux", "aarch64")])
def test_elsewhere_nothing_is_asked(monkeypatch, platform, machine):
    monkeypatch.setattr(tiles.sys, "platform", platform)
    monkeypatch.setattr(tiles.platform, "machine", lambda: machine)
    monkeypatch.setattr(tiles.ctypes, "CDLL", lambda *_, **__: pytest.fail("asked"))
    assert not request_tiles()


@pytest.mark.skipif("amx_tile" not in detect_cpu().flags, reason="this CPU lends no tiles")
def test_permission_holds_in_threads_that_are_there_already():
    code = (
        "import ctypes, threading\n"
        "from tvmfuse.hardware.tiles import request_tiles\n"
        "wait, answers = threading.Event(), []\n"
        "def ask():\n"
        "    wait.wait()\n"
        "    bits = ctypes.c_uint64()\n"
        "    ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(bits))\n"
        "    answers.append(bits.value >> 18 & 1)\n"
        "thread = threading.Thread(target=ask)\n"
        "thread.start()\n"
        "assert request_tiles() and request_tiles()\n"
        "wait.set()\n"
        "thread.join()\n"
        "assert answers == [1], answers\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
