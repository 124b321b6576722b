"""Loading and calling: results, structure, lifetime, and what is refused."""

import json

import numpy as np
import pytest

from tvmfuse.errors import ArtifactError
from tvmfuse.runtime import load, save_artifact


def test_round_trip(tiny, artifact, x):
    model = load(artifact)
    y = model(x)
    assert list(y) == ["y"]
    assert y["y"].flags.writeable
    np.testing.assert_allclose(
        y["y"], tiny.expected(x, tiny.random_weights()), rtol=1e-5, atol=1e-4
    )


def test_result_outlives_the_next_call(artifact, x):
    model = load(artifact)
    first = model(x)["y"]
    kept = first.copy()
    for scale in range(2, 6):
        model(x * scale)
    np.testing.assert_array_equal(first, kept)
    del model
    np.testing.assert_array_equal(first, kept)


def test_results_that_are_inputs_or_weights_are_copies(tiny, tmp_path, x):
    library = tmp_path / "echo.so"
    tiny.build_library(library, echo=True)
    save_artifact(
        tmp_path / "echo",
        library=library,
        weights=tiny.random_weights(),
        manifest=tiny.describe(echo=True),
        runtime_library=tiny.runtime_library(),
    )
    model = load(tmp_path / "echo")
    y, same, w0 = model(x)
    np.testing.assert_array_equal(same, x)
    same[:] = 0
    w0[:] = 0
    again, echoed, _ = model(x)
    np.testing.assert_array_equal(again, y)
    np.testing.assert_array_equal(echoed, x)


def test_replaced_artifact_is_the_one_that_runs(tiny, artifact, tmp_path, x):
    old = load(artifact)
    library = tmp_path / "other.so"
    tiny.build_library(library, echo=True)
    save_artifact(
        artifact,
        library=library,
        weights=tiny.random_weights(seed=5),
        manifest=tiny.describe(echo=True),
        runtime_library=tiny.runtime_library(),
    )
    np.testing.assert_allclose(
        load(artifact)(x)[0], tiny.expected(x, tiny.random_weights(seed=5)), rtol=1e-5, atol=1e-4
    )
    np.testing.assert_allclose(
        old(x)["y"], tiny.expected(x, tiny.random_weights()), rtol=1e-5, atol=1e-4
    )


def test_repr_tells_what_it_is(tiny, artifact):
    text = repr(load(artifact, threads=1))
    for part in (f"x: float32[2, {tiny.SIZE}]", "llvm-test", "two matmuls", "1 threads", "tvm 0."):
        assert part in text


@pytest.mark.parametrize("name", ["model.so", "weights.safetensors"])
def test_truncated_file(artifact, name):
    path = artifact / name
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 1)
    with pytest.raises(ArtifactError, match=rf"{name} has {size - 1} bytes.*says {size}.*rebuild"):
        load(artifact)


@pytest.mark.parametrize("name", ["model.so", "weights.safetensors"])
def test_altered_file(artifact, name):
    path = artifact / name
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=rf"{name} was altered: sha256 [0-9a-f]{{64}}"):
        load(artifact)


@pytest.mark.parametrize("name", ["model.so", "weights.safetensors", "manifest.json"])
def test_missing_file(artifact, name):
    (artifact / name).unlink()
    with pytest.raises(ArtifactError, match=name):
        load(artifact)


def test_no_such_folder(tmp_path):
    with pytest.raises(ArtifactError, match="no such folder"):
        load(tmp_path / "nowhere")


def _edit(artifact, change):
    path = artifact / "manifest.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.update(schema=99), "schema version 99"),
        (lambda m: m.update(kind="other"), "not the manifest"),
        (lambda m: m.pop("signature"), "damaged"),
        (lambda m: m["weights"].append("w.c"), "no tensor 'w.c'"),
        (lambda m: m["files"].pop("model.so"), "does not list model.so"),
        (lambda m: m["target"].update(features=["avx9000", "sse2"]), "lacks avx9000"),
        (lambda m: m["versions"].update(tvm="0.26.0"), "built with TVM 0.26.0, but TVM"),
        (lambda m: m["versions"].update(tvm_ffi="0.2.1"), "apache-tvm-ffi 0.2.1"),
    ],
)
def test_manifest_that_does_not_fit(artifact, change, said):
    _edit(artifact, change)
    with pytest.raises(ArtifactError, match=said):
        load(artifact)


def test_library_that_is_none(artifact):
    (artifact / "model.so").write_bytes(b"no ELF file at all")
    _edit(artifact, lambda m: m["files"]["model.so"].update(size_bytes=18))
    with pytest.raises(ArtifactError, match=r"cannot open .*model\.so"):
        load(artifact, verify_hashes=False)


def test_without_hashes_only_sizes_are_compared(artifact, x):
    path = artifact / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x80  # the sign of the last weight
    path.write_bytes(data)
    assert np.isfinite(load(artifact, verify_hashes=False)(x)["y"]).all()
