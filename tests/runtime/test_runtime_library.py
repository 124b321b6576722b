"""Which TVM runtime a process ends up with."""

import importlib.util
import json
import subprocess
import sys
import textwrap

import pytest

from tvmfuse.errors import ArtifactError
from tvmfuse.runtime import library, load


def _run(code, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def _loaded_runtimes():
    """Code that prints which copies of TVM's runtime the process has mapped."""
    return """
    maps = {line.split()[-1] for line in open("/proc/self/maps") if "libtvm_runtime.so" in line}
    print(*maps)
    """


def test_loading_imports_neither_torch_nor_tvm(artifact):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed, so nothing could import it")
    code = """
    import sys, numpy as np
    from tvmfuse.runtime import load
    load(sys.argv[1])(np.ones((2, 32), np.float32))
    assert not {"torch", "tvm"} & set(sys.modules), "imported"
    import torch
    y = load(sys.argv[1])(torch.ones(2, 32))["y"]
    assert isinstance(y, torch.Tensor)
    """
    done = _run(code, artifact)
    assert done.returncode == 0, done.stderr


def test_installed_runtime_is_used_and_tvm_can_follow(artifact):
    code = """
    import sys, numpy as np
    from tvmfuse.runtime import load
    model = load(sys.argv[1])
    x = np.ones((2, 32), np.float32)
    before = model(x)["y"]
    import tvm
    assert np.array_equal(model(x)["y"], before)
    assert np.array_equal(load(sys.argv[1])(x)["y"], before)
    """ + _loaded_runtimes()
    done = _run(code, artifact)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 1 and str(artifact) not in done.stdout


_WITHOUT_TVM = """
    import sys, numpy as np
    sys.modules["tvm"] = None  # as if it were not installed
    from tvmfuse.errors import ArtifactError
    from tvmfuse.runtime import load
    """


def test_bundled_runtime_is_used_where_tvm_is_not_installed(artifact):
    code = (
        _WITHOUT_TVM
        + """
    load(sys.argv[1])(np.ones((2, 32), np.float32))
    """
        + _loaded_runtimes()
    )
    done = _run(code, artifact)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(artifact / "lib" / "libtvm_runtime.so")]


def test_altered_bundled_runtime_is_refused(artifact):
    path = artifact / "lib" / "libtvm_runtime.so"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    done = _run(_WITHOUT_TVM + "load(sys.argv[1])", artifact)
    assert done.returncode != 0
    assert "libtvm_runtime.so was altered: sha256" in done.stderr


def test_second_bundled_version_is_refused(artifact, monkeypatch):
    monkeypatch.setattr(library, "_installed_tvm", lambda: None)
    monkeypatch.setattr(library, "_bundled_version", "0.1.0")
    with pytest.raises(ArtifactError, match=r"TVM 0\.1\.0 is already loaded from another artifact"):
        load(artifact)


def test_missing_ffi_package_is_named(artifact):
    code = """
    import sys
    sys.modules["tvm_ffi"] = None
    from tvmfuse.runtime import load
    load(sys.argv[1])
    """
    done = _run(code, artifact)
    assert done.returncode != 0
    assert "needs the package apache-tvm-ffi" in done.stderr and "pip install" in done.stderr


def test_manifest_without_a_bundled_runtime(artifact):
    path = artifact / "manifest.json"
    data = json.loads(path.read_text())
    del data["files"]["lib/libtvm_runtime.so"]
    path.write_text(json.dumps(data))
    load(artifact)  # tvm is installed here: the copy is not needed
    done = _run(_WITHOUT_TVM + "load(sys.argv[1])", artifact)
    assert "does not list lib/libtvm_runtime.so" in done.stderr
