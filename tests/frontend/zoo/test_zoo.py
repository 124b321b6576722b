"""Names of models: each library's, with seeded weights and inputs of the right kind."""

import json
import sys

import pytest
import torch
from torch import nn

from tvmfuse.errors import ImportModelError, OptionError, UnknownNameError
from tvmfuse.frontend import zoo
from tvmfuse.frontend.import_model import workload_of
from tvmfuse.frontend.models import load_model
from tvmfuse.frontend.zoo import hf_models, torchvision_models

TINY_BERT = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 50,
             "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 16,
             "architectures": ["BertModel"]}  # fmt: skip


def outputs(loaded):
    with torch.no_grad():
        return loaded.module(*loaded.example_inputs)


def parameters(loaded):
    return sum(p.numel() for p in loaded.module.parameters())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(TINY_BERT))
    return tmp_path / "tiny"


def test_torchvision_has_all_its_kinds_but_quantised_models():
    found = set(torchvision_models.names())
    assert {"resnet50", "fcn_resnet50", "r3d_18", "ssd300_vgg16", "raft_small"} <= found
    assert not [name for name in found if "quantized" in name]


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("inception_v3", [(1, 3, 299, 299)]),
        ("vit_h_14", [(1, 3, 518, 518)]),
        ("lraspp_mobilenet_v3_large", [(1, 3, 520, 520)]),
        ("r3d_18", [(1, 3, 16, 112, 112)]),
        ("s3d", [(1, 3, 14, 224, 224)]),
        ("raft_small", [(1, 3, 360, 480)] * 2),
    ],
)
def test_inputs_have_the_size_of_the_weights(name, shapes):
    assert [shape for shape, _ in torchvision_models._shapes(name)] == shapes


def test_segmentation_returns_its_masks():
    loaded = load_model("lraspp_mobilenet_v3_large", shape="1,3,64,64")
    assert outputs(loaded)["out"].shape == (1, 21, 64, 64)


def test_yolov5s_is_the_published_network():
    loaded = load_model("yolov5s", shape="1,3,64,64")
    assert parameters(loaded) == 7_235_389  # as Ultralytics reports for release 7
    assert outputs(loaded).shape == (1, 3 * (64 + 16 + 4), 85)


def test_a_recommender_has_bags_of_ids():
    loaded = load_model("dlrm", batch=3)
    assert [i.dtype for i in loaded.example_inputs] == [torch.float32, *[torch.int64] * 4]
    y = outputs(loaded)
    assert y.shape == (3, 1) and bool(((y > 0) & (y < 1)).all())


def test_timm():
    loaded = load_model("timm:resnet18", shape="1,3,64,64")
    again = load_model("timm:resnet18", shape="1,3,64,64")
    assert outputs(loaded).shape == (1, 1000)
    torch.testing.assert_close(outputs(loaded), outputs(again), rtol=0, atol=0)
    with pytest.raises(UnknownNameError, match="'resnet18'"):
        load_model("timm:resnet1")


def test_hf_names_have_the_published_sizes():
    assert parameters(load_model("hf:t5-small-encoder")) == 35_330_816
    assert parameters(load_model("hf:distilbert-base-uncased")) == 66_362_880


def test_hf_arguments_keep_their_names_and_only_tensors_come_back(folder):
    loaded = load_model(f"hf:{folder}", batch=2)
    workload = workload_of(loaded)
    assert [s.name for s in workload.signature.inputs] == ["input_ids", "attention_mask"]
    assert workload.signature.inputs[0].shape == (2, 16)
    assert list(workload.signature.output_tree["dict"]) == ["last_hidden_state", "pooler_output"]
    assert int(loaded.example_inputs[0].max()) < TINY_BERT["vocab_size"]


def test_a_folder_brings_its_weights(folder):
    random = load_model(f"hf:{folder}", seed=3)
    random.module.module.save_pretrained(folder)
    stored = load_model(f"hf:{folder}", seed=3)
    assert stored.provenance["weights"] == "from the folder"
    assert outputs(stored).keys() == outputs(random).keys()
    torch.testing.assert_close(outputs(stored), outputs(random))
    assert load_model(f"hf:{folder}", weights="random").provenance["weights"] == "random, seed 0"


def test_hf_shape_is_that_of_the_text(folder):
    loaded = load_model(f"hf:{folder}", shape="3,8")
    assert [tuple(i.shape) for i in loaded.example_inputs] == [(3, 8)] * 2
    with pytest.raises(OptionError, match="2 were given"):
        load_model(f"hf:{folder}", shape="3,8;3,8")


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        ("hf:bert-base-uncasd", UnknownNameError, "'bert-base-uncased'"),
        ("yolov5z", UnknownNameError, "'yolov5"),
        ("nonsense", UnknownNameError, "hf:NAME"),
    ],
)
def test_unknown_names(spec, kind, message):
    with pytest.raises(kind, match=message):
        load_model(spec)


def test_no_hub_is_asked():
    with pytest.raises(OptionError, match="no hub"):
        load_model("hf:bert-base-uncased", weights="pretrained")


def test_a_broken_folder_is_named(folder):
    (folder / "config.json").write_text("{}")
    with pytest.raises(ImportModelError, match="tiny"):
        load_model(f"hf:{folder}")


@pytest.mark.parametrize(("prefix", "package"), [("hf", "transformers"), ("timm", "timm")])
def test_a_missing_package_is_named(monkeypatch, prefix, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportModelError, match=f"pip install {package}"):
        load_model(f"{prefix}:anything")


def test_a_model_that_takes_nothing_known():
    class Odd(nn.Module):
        config = object()

        def forward(self, odd):
            return odd

    with pytest.raises(ImportModelError, match="Odd takes none of input_ids"):
        hf_models._inputs(Odd(), None, None, 0)


def test_names_are_found_once():
    assert len(zoo.names()) == len(set(zoo.names()))
    assert zoo.find("no such model") is None


@pytest.mark.parametrize(("name", "side"), [("vit_h_14", 518), ("vit_l_32", 224)])
def test_vision_transformers_are_made_for_the_size_of_their_weights(name, side):
    with torch.device("meta"):
        assert torchvision_models._make(name, "random").image_size == side
