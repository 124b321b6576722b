"""scripts/deploy_size.py: an artifact runs in a bare environment, and what that takes."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import deploy_size  # noqa: E402


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    path = ROOT / "tests" / "runtime" / "conftest.py"
    spec = importlib.util.spec_from_file_location("tiny_artifact", path)
    tiny = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiny)
    folder = tmp_path_factory.mktemp("deploy")
    tiny.build_library(folder / "model.so")
    tiny.save_artifact(
        folder / "artifact",
        library=folder / "model.so",
        weights=tiny.random_weights(),
        manifest=tiny.describe(),
        runtime_library=tiny.runtime_library(),
    )
    return folder / "artifact"


def test_runs_without_torch_and_compiler_within_15_mb(artifact, capsys):
    status = deploy_size.main([str(artifact)])
    said = capsys.readouterr()
    assert status == 0, said.err
    assert "ran in a bare environment" in said.out and "LoadedModel" in said.out
    total_mb = float(re.search(r"^total +([\d.]+) MB", said.out, re.M).group(1))
    assert 3.4 < total_mb <= 15


def test_fails_over_the_limit(artifact, capsys):
    assert deploy_size.main([str(artifact), "--limit-mb", "0.1"]) == 1
    assert "limit 0.1 MB" in capsys.readouterr().out


def test_fails_when_it_does_not_run(artifact, tmp_path, capsys):
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(artifact, broken)
    (broken / "model.so").write_bytes(b"nothing")
    assert deploy_size.main([str(broken)]) == 1
    assert "model.so has 7 bytes" in capsys.readouterr().err


def test_refuses_what_is_no_artifact(tmp_path, capsys):
    with pytest.raises(SystemExit):
        deploy_size.main([str(tmp_path)])
    assert "is not an artifact" in capsys.readouterr().err
