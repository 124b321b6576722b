import pytest
import torch
from torch import nn

from tvmfuse.errors import ImportModelError, OptionError, UnknownNameError
from tvmfuse.frontend.models import load_model

pytest.importorskip("torchvision")

USER_MODULE = """
import torch
from torch import nn

def plain():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

def with_inputs():
    return nn.Linear(4, 3), (torch.arange(8.0).reshape(2, 4),)

def broken():
    raise RuntimeError("no such file")

def number():
    return 3
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "tvmfuse_user_zoo.py").write_text(USER_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    return "tvmfuse_user_zoo"


def test_torchvision_name_is_seeded_and_says_so():
    one, two, other = (load_model("squeezenet1_1", seed=s, shape="1,3,64,64") for s in (0, 0, 1))
    assert one.provenance["weights"] == "random, seed 0"
    assert not one.module.training
    with torch.no_grad():
        same = torch.equal(one.module(*one.example_inputs), two.module(*two.example_inputs))
    assert same
    assert not torch.equal(next(one.module.parameters()), next(other.module.parameters()))


def test_loading_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    load_model("squeezenet1_1", shape="1,3,64,64")
    assert torch.equal(before, torch.get_rng_state())


def test_random_batch_norms_are_not_identities():
    module = load_model("resnet18", shape="1,3,64,64").module
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        assert norm.running_var.max() > 1.5 * norm.running_var.min() > 0
        assert norm.running_mean.abs().max() > 0.01
        assert norm.weight.std() > 0.01


def test_random_output_depends_on_the_input():
    """With fresh initial values this network gives the same answer to 7 digits for any input."""
    module, (x,), *_ = load_model("mobilenet_v3_small", shape="1,3,64,64")
    with torch.no_grad():
        one, other = module(x), module(x.flip(3))
    assert (one - other).abs().max() > 0.01 * one.abs().max()


@pytest.mark.parametrize(("name", "side"), [("resnet18", 224), ("inception_v3", 299)])
def test_default_image_side(name, side):
    assert load_model(name).example_inputs[0].shape == (1, 3, side, side)


def test_batch_replaces_the_first_extent():
    loaded = load_model("resnet18", batch=3, shape="1,3,32,48")
    assert loaded.example_inputs[0].shape == (3, 3, 32, 48)


def test_unknown_name_lists_the_nearest():
    with pytest.raises(UnknownNameError, match="'resnet50'"):
        load_model("resnet5O")


def test_batch_must_be_positive():
    with pytest.raises(OptionError, match="positive"):
        load_model("resnet18", batch=0)


def test_failing_download_names_the_way_out(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("torch.hub.download_url_to_file", refuse)
    monkeypatch.setattr("torch.hub.load_state_dict_from_url", refuse)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refuse)
    with pytest.raises(ImportModelError, match=r"no route to host.*--weights random"):
        load_model("squeezenet1_1", weights="pretrained")


def test_callable_with_example_inputs(user_module):
    loaded = load_model(f"{user_module}:with_inputs")
    assert loaded.name == "with_inputs"
    assert loaded.provenance["weights"] == "as the callable made them"
    assert loaded.example_inputs[0].shape == (2, 4)
    assert load_model(f"{user_module}:with_inputs", batch=5).example_inputs[0].shape == (5, 4)


def test_callable_without_inputs_needs_a_shape(user_module):
    with pytest.raises(ImportModelError, match="--shape"):
        load_model(f"{user_module}:plain")
    loaded = load_model(f"{user_module}:plain", shape="2,4", weights="random")
    assert loaded.example_inputs[0].shape == (2, 4)
    assert loaded.module[1].running_var.max() > 1.0


@pytest.mark.parametrize(
    ("name", "message"),
    [("broken", "no such file at .*broken"), ("number", "returned a int")],
)
def test_callable_that_gives_no_module(user_module, name, message):
    with pytest.raises(ImportModelError, match=message):
        load_model(f"{user_module}:{name}")


def test_callable_misspelt_or_missing(user_module):
    with pytest.raises(UnknownNameError, match="with_inputs"):
        load_model(f"{user_module}:with_input")
    with pytest.raises(ImportModelError, match="cannot import 'tvmfuse_no_such_zoo'"):
        load_model("tvmfuse_no_such_zoo:plain")


def test_pretrained_is_for_the_zoo_only(user_module):
    with pytest.raises(OptionError, match="names of the zoo"):
        load_model(f"{user_module}:with_inputs", weights="pretrained")


def test_missing_weights_file():
    with pytest.raises(ImportModelError, match="is no file"):
        load_model("squeezenet1_1", weights="nowhere.pth")


def test_pt2_carries_inputs_and_reference(tmp_path):
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    inputs = (torch.randn(2, 4),)
    torch.export.save(torch.export.export(module, inputs), tmp_path / "small.pt2")
    loaded = load_model(str(tmp_path / "small.pt2"))
    assert loaded.name == "small" and loaded.program is not None
    torch.testing.assert_close(loaded.module(*loaded.example_inputs), module(*inputs))


def test_pt2_refuses_other_options_and_bad_files(tmp_path):
    with pytest.raises(OptionError, match="--batch and --shape"):
        load_model("small.pt2", batch=2, shape="2,4")
    with pytest.raises(ImportModelError, match="no such file"):
        load_model(str(tmp_path / "absent.pt2"))
    (tmp_path / "bad.pt2").write_bytes(b"nothing")
    with pytest.raises(ImportModelError, match=r"torch.export.save"):
        load_model(str(tmp_path / "bad.pt2"))
