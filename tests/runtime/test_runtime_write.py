"""Saving: whole or not at all, and never over something else."""

import json
import os
import re
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tvmfuse.errors import ArtifactError
from tvmfuse.runtime import load, save_artifact
from tvmfuse.runtime.weights import read_weights, write_weights


@pytest.fixture
def save(tiny, library):
    def call(folder, **changes):
        given = {
            "library": library,
            "weights": tiny.random_weights(),
            "manifest": tiny.describe(),
            "runtime_library": tiny.runtime_library(),
        }
        return save_artifact(folder, **{**given, **changes})

    return call


def test_files_and_seals(save, tmp_path):
    save(tmp_path / "a")
    names = sorted(str(p.relative_to(tmp_path / "a")) for p in (tmp_path / "a").rglob("*.*"))
    assert names == ["lib/libtvm_runtime.so", "manifest.json", "model.so", "weights.safetensors"]
    data = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert data["weights"] == ["w.b", "w.a"]
    assert sorted(data["files"]) == sorted(set(names) - {"manifest.json"})
    assert os.listdir(tmp_path) == ["a"]


def test_weights_open_with_the_safetensors_library(tmp_path):
    load_file = pytest.importorskip("safetensors.numpy").load_file
    weights = {
        "odd": np.arange(3, dtype=np.int64),
        "scalar": np.float32(2.5).reshape(()),
        "even": np.ones((4, 16), np.float32),
        "none": np.zeros((0, 4), np.float16),
        "flags": np.array([True, False]),
        "strided": np.arange(64, dtype=np.float64).reshape(8, 8).T,
    }
    seal = write_weights(tmp_path / "w.safetensors", weights)
    theirs = load_file(tmp_path / "w.safetensors")
    ours = read_weights(tmp_path, "w.safetensors", seal, verify=True)
    assert set(theirs) == set(ours) == set(weights)
    for name, array in weights.items():
        np.testing.assert_array_equal(theirs[name], array)
        np.testing.assert_array_equal(ours[name].array, array)
        assert ours[name].array.dtype == array.dtype
        assert array.size == 0 or ours[name].array.ctypes.data % 64 == 0


def test_large_weights_lie_in_huge_pages(tmp_path):
    weights = {"w": np.random.default_rng(0).standard_normal((1024, 2048), dtype=np.float32)}
    seal = write_weights(tmp_path / "w", weights)
    ours = read_weights(tmp_path, "w", seal, verify=True)["w"].array
    np.testing.assert_array_equal(ours, weights["w"])
    assert ours.ctypes.data % (2 << 20) == 0
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if setting.exists() and "[never]" not in setting.read_text():
        assert _huge_page_bytes(ours.ctypes.data) >= ours.nbytes


def _huge_page_bytes(address):
    """AnonHugePages of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(span[1], 16) <= address < int(span[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no mapping holds {address:x}")


def test_unsavable_dtype(save, tmp_path):
    with pytest.raises(ArtifactError, match="weight 'c' has dtype complex64"):
        save(tmp_path / "a", weights={"c": np.zeros(2, np.complex64)})
    assert os.listdir(tmp_path) == []


def test_an_artifact_is_replaced(save, tmp_path, tiny):
    save(tmp_path / "a")
    save(tmp_path / "a", weights=tiny.random_weights(seed=3), manifest=tiny.describe(kernels=7))
    assert load(tmp_path / "a").manifest.kernels == 7
    assert os.listdir(tmp_path) == ["a"]


def test_an_empty_folder_is_taken(save, tmp_path):
    (tmp_path / "a").mkdir()
    save(tmp_path / "a")
    assert (tmp_path / "a" / "model.so").is_file()


def test_other_folders_and_files_are_not_overwritten(save, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("more work")
    for name in ("folder", "file"):
        with pytest.raises(ArtifactError, match=f"will not overwrite .*{name}"):
            save(tmp_path / name)
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "years of work"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_failed_save_keeps_the_old_artifact(save, tmp_path, x):
    save(tmp_path / "a")
    want = load(tmp_path / "a")(x)["y"]
    with pytest.raises(ArtifactError, match=r"cannot write .*missing\.so"):
        save(tmp_path / "a", library=tmp_path / "missing.so")
    np.testing.assert_array_equal(load(tmp_path / "a")(x)["y"], want)
    assert os.listdir(tmp_path) == ["a"]


def test_disk_full(tiny, tmp_path, library):
    """A file-size limit fails a write half-way, as a full disk does."""
    code = f"""
    import resource, signal, sys
    import numpy as np
    from pathlib import Path
    from tvmfuse.errors import ArtifactError
    from tvmfuse.runtime import Manifest, save_artifact
    from tvmfuse.runtime.manifest import Manifest
    from tvmfuse.signature import Signature
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    manifest = Manifest(Signature((), ()), "key", {{}}, (), {{}}, {{}}, 0)
    try:
        save_artifact({str(tmp_path / "full" / "a")!r}, library=Path({str(library)!r}),
                      weights={{"w": np.zeros(1 << 20, np.float32)}}, manifest=manifest,
                      runtime_library=Path({str(tiny.runtime_library())!r}))
    except ArtifactError as error:
        print(error)
        sys.exit(7)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 7, done.stderr
    assert "File too large" in done.stdout and "needs about" in done.stdout
    assert os.listdir(tmp_path / "full") == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1 << 20


def test_too_little_space_is_seen_before_writing(save, tmp_path, monkeypatch):
    import shutil

    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real._replace(free=1000))
    with pytest.raises(ArtifactError, match=r"No space left.*needs about 4\.\d MB, 0\.0 MB are"):
        save(tmp_path / "a")
    assert os.listdir(tmp_path) == []


def test_unwritable_place(save, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot write the artifact"):
        save(tmp_path / "file" / "a")
