"""Models inside packages: real weights where the package is, what to install where it is not."""

import importlib.util
import struct
from importlib import metadata

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tvmfuse.errors import ImportModelError, OptionError
from tvmfuse.frontend import zoo
from tvmfuse.frontend.models import load_model
from tvmfuse.frontend.zoo import ctranslate2, packaged, packaged_networks


class Installed:
    """A distribution below a folder."""

    version = "9.9"

    def __init__(self, folder):
        self.folder = folder

    def locate_file(self, path):
        return self.folder / path


@pytest.fixture
def installed(monkeypatch, tmp_path):
    monkeypatch.setattr(packaged.metadata, "distribution", lambda name: Installed(tmp_path))
    return tmp_path


def missing(name):
    raise metadata.PackageNotFoundError(name)


@pytest.mark.parametrize("name", packaged.names())
def test_a_missing_package_says_what_to_install(monkeypatch, name):
    monkeypatch.setattr(packaged.metadata, "distribution", missing)
    model = packaged.MODELS[name]
    with pytest.raises(ImportModelError, match=f"{name} .*{model.package}=={model.version}"):
        load_model(name)


def test_another_version_without_the_file_is_named(installed):
    with pytest.raises(ImportModelError, match=r"nudenet 9\.9 has no nudenet/320n\.onnx"):
        load_model("nudenet-320n")


def test_weights_are_those_of_the_package(installed):
    with pytest.raises(OptionError, match="the weights of the package nudenet"):
        load_model("nudenet-320n", weights="random")


def test_an_onnx_file_of_a_package(installed):
    (installed / "nudenet").mkdir()
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["images"], ["y"])], "g",
        [value("images", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [value("y", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, installed / "nudenet" / "320n.onnx")
    loaded = load_model("nudenet-320n", batch=2)
    assert loaded.example_inputs[0].shape == (2, 3, 320, 320) and loaded.name == "nudenet-320n"
    assert loaded.provenance["weights"] == "from the package nudenet 9.9"


def test_a_state_dict_of_a_package(installed):
    (installed / "facenet_pytorch" / "data").mkdir(parents=True)
    path = installed / "facenet_pytorch" / "data" / "onet.pt"
    with pytest.raises(ImportModelError, match=r"no facenet_pytorch/data/onet\.pt"):
        load_model("mtcnn-onet")
    path.write_bytes(b"no weights")
    with pytest.raises(ImportModelError, match=r"cannot load onet\.pt.*facenet-pytorch==2\.6\.0"):
        load_model("mtcnn-onet")


def test_the_speaker_encoder(installed):
    (installed / "resemblyzer").mkdir()
    state = packaged_networks.SpeakerEmbedding().state_dict()
    state["similarity_weight"] = torch.ones(1)
    torch.save({"model_state": state}, installed / "resemblyzer" / "pretrained.pt")
    loaded = load_model("speaker-embedding", batch=2)
    with torch.no_grad():
        y = loaded.module(*loaded.example_inputs)
    torch.testing.assert_close(y.norm(dim=1), torch.ones(2))


def text(said):
    return struct.pack("<H", len(said) + 1) + said.encode() + b"\0"


def test_files_of_ctranslate2(tmp_path):
    half = np.arange(6, dtype=np.float16).reshape(2, 3)
    parts = [struct.pack("<I", 6), text("WhisperSpec"), struct.pack("<II", 3, 1), text("a/weight"),
             struct.pack("<BIIBI", 2, 2, 3, 4, half.nbytes), half.tobytes()]  # fmt: skip
    (tmp_path / "model.bin").write_bytes(b"".join(parts))
    found = ctranslate2.read(tmp_path / "model.bin")
    assert torch.equal(found["a/weight"], torch.arange(6).reshape(2, 3).half())
    (tmp_path / "model.bin").write_bytes(struct.pack("<I", 5))
    with pytest.raises(ValueError, match="version 5"):
        ctranslate2.read(tmp_path / "model.bin")


def test_joined_projections_come_apart():
    joined = torch.arange(12.0).reshape(6, 2)
    found = ctranslate2._renamed("encoder/layer_1/self_attention/linear_0/weight", joined)
    prefix = "model.encoder.layers.1.self_attn"
    assert list(found) == [f"{prefix}.{p}_proj.weight" for p in "qkv"]
    assert torch.equal(found[f"{prefix}.k_proj.weight"], joined[2:4])
    assert "model.decoder.layer_norm.weight" in ctranslate2._renamed(
        "decoder/layer_norm/gamma", joined
    )


def test_names_are_no_others():
    others = set(zoo.names())
    assert set(packaged.names()) <= others


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mtcnn-onet", "wake-word-alexa", "efficientnet-lite0"])
def test_the_real_ones_where_they_are_installed(name):
    try:
        metadata.distribution(packaged.MODELS[name].package)
    except metadata.PackageNotFoundError:
        row = packaged.MODELS[name]
        pytest.skip(f"the weights are in {row.package}=={row.version}, which is no dependency")
    if name == "efficientnet-lite0" and not importlib.util.find_spec("efficientnet_lite_pytorch"):
        pytest.skip("the network is in efficientnet-lite-pytorch, which is no dependency")
    loaded = load_model(name)
    with torch.no_grad():
        assert torch.utils._pytree.tree_leaves(loaded.module(*loaded.example_inputs))
