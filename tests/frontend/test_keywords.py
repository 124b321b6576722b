"""Keyword arguments: their order, what does not fit, and the way through import."""

import pytest
import torch
from torch import nn

from tvmfuse.errors import ImportModelError, OptionError
from tvmfuse.frontend.import_model import import_module
from tvmfuse.frontend.keywords import ByKeyword, apart, with_keywords
from tvmfuse.frontend.models import load_model

USER_MODULE = """
import torch
from torch import nn

class Scaled(nn.Module):
    def forward(self, x, *, shift=None, scale=None):
        x = x if scale is None else x * scale
        return x if shift is None else x + shift

def make():
    return Scaled(), (torch.ones(2, 4),), {"scale": torch.full((4,), 3.0)}
"""


class Named(nn.Module):
    """Takes more than it needs, in an order of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x, y=None, *, shift=None, **more):
        x = x + self.offset
        x = x if y is None else x * y
        x = x if shift is None else x - shift
        return x if "last" not in more else x * more["last"]


X = torch.arange(8.0).reshape(2, 4)


def test_without_keywords_nothing_is_wrapped():
    module = Named()
    assert with_keywords(module, (X,), None) == (module, (X,))
    assert with_keywords(module, (X,), {}) == (module, (X,))
    assert apart(module, (X,)) == (module, (X,), {})


def test_keywords_come_in_the_order_of_the_parameters():
    module = Named()
    kwargs = {"last": 4, "shift": 3, "y": 2}
    whole, inputs = with_keywords(module, (X,), kwargs)
    assert isinstance(whole, ByKeyword) and whole.names == ("y", "shift", "last")
    assert inputs == (X, 2, 3, 4)
    assert torch.equal(whole(*inputs), module(X, **kwargs))
    own, args, named = apart(whole, inputs)
    assert own is module and args == (X,) and named == kwargs
    assert whole.get_buffer("offset") is module.offset


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((X,), {"x": X}, "multiple values for argument 'x'"),
        ((), {"y": X}, "missing a required argument: 'x'"),
        ((X,), [("y", X)], "kwargs must map the names of arguments to values, got a list"),
        ((X,), {1: X}, "kwargs must map the names"),
    ],
)
def test_what_does_not_fit_is_told(args, kwargs, message):
    with pytest.raises(ImportModelError, match=message):
        with_keywords(Named(), args, kwargs)


def test_an_unknown_keyword_is_told_with_the_signature():
    with pytest.raises(ImportModelError, match=r"Linear\.forward.*unexpected keyword.*'colour'"):
        import_module(nn.Linear(4, 3).eval(), (X,), kwargs={"colour": X})


def test_the_signature_says_what_is_passed_by_name():
    workload = import_module(Named().eval(), (X,), kwargs={"shift": X, "y": X + 1})
    signature = workload.signature
    assert [spec.name for spec in signature.inputs] == ["x", "y", "shift"]
    assert signature.parameters == ("x", "y", "shift") and signature.by_name == 2


def test_a_gradient_in_a_keyword_is_refused():
    with pytest.raises(ImportModelError, match=r"\['y'\] requires gradients"):
        import_module(Named().eval(), (X,), kwargs={"y": torch.ones(4, requires_grad=True)})


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "tvmfuse_keywords_zoo.py").write_text(USER_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    return "tvmfuse_keywords_zoo:make"


def test_a_callable_may_give_keywords(user_module):
    loaded = load_model(user_module)
    assert torch.equal(loaded.module(*loaded.example_inputs), torch.full((2, 4), 3.0))
    other = load_model(user_module, shape="5,4;4")
    assert [tuple(x.shape) for x in other.example_inputs] == [(5, 4), (4,)]
    with pytest.raises(OptionError, match="--shape names 1 tensors, the model takes 2"):
        load_model(user_module, shape="5,4")


def test_pt2_with_keywords(tmp_path):
    module, kwargs = Named().eval(), {"shift": X * 2, "y": X + 1}
    program = torch.export.export(module, (X,), kwargs)
    torch.export.save(program, tmp_path / "named.pt2")
    loaded = load_model(str(tmp_path / "named.pt2"))
    torch.testing.assert_close(loaded.module(*loaded.example_inputs), module(X, **kwargs))
