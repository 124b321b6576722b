import collections
import dataclasses
import types
from typing import Any

import pytest
import torch
from torch import nn

import tvmfuse
from tvmfuse.errors import ImportModelError, InputError
from tvmfuse.frontend.torch_export import export_program
from tvmfuse.frontend.trees import forward_parameters, signature_of


class Nested(nn.Module):
    def forward(self, pack, scale, k: int, flag=None):
        first, table = pack
        return {"a": first * scale, "rest": [table["b"][:, :k], None, 3]}


def describe(module, *inputs):
    return signature_of(export_program(module.eval(), inputs), forward_parameters(module))


def test_names_and_trees_of_nested_inputs():
    pack = (torch.ones(2, 3), {"b": torch.ones(2, 5)})
    found = describe(Nested(), pack, torch.tensor(1.5), 2, None)
    assert [str(s) for s in found.inputs] == [
        "pack_0: float32[2, 3]",
        "pack_1_b: float32[2, 5]",
        "scale: float32[]",
    ]
    tensors = {"tuple": [{"tensor": 0}, {"dict": {"b": {"tensor": 1}}}]}
    constants = [{"const": 2}, {"const": None}]
    assert found.input_tree == {"tuple": [tensors, {"tensor": 2}, *constants]}
    rest = {"list": [{"tensor": 1}, {"const": None}, {"const": 3}]}
    assert found.output_tree == {"dict": {"a": {"tensor": 0}, "rest": rest}}
    assert [s.name for s in found.outputs] == ["output_0", "output_1"]


def test_ordered_dict_is_a_dict():
    class Ordered(nn.Module):
        def forward(self, x):
            return collections.OrderedDict(out=x + 1, aux=x - 1)

    assert describe(Ordered(), torch.ones(2)).output_tree == {
        "dict": {"out": {"tensor": 0}, "aux": {"tensor": 1}}
    }


def test_other_containers_are_refused():
    class Strange(nn.Module):
        def forward(self, x):
            return collections.deque([x + 1])

    with pytest.raises(ImportModelError, match="deque"):
        describe(Strange(), torch.ones(2))


def test_variadic_inputs_get_numbers():
    class Variadic(nn.Module):
        def forward(self, x, *more):
            return x + more[0]

    names = [s.name for s in describe(Variadic(), torch.ones(2), torch.ones(2)).inputs]
    assert names == ["x", "input_1"]


Pair = collections.namedtuple("Pair", "low high")


@dataclasses.dataclass
class Options:
    scale: Any
    shift: Any = None
    power: int = 2


torch.export.register_dataclass(Options)


class Records(nn.Module):
    def forward(self, pair, options):
        low = pair.low * options.scale**options.power
        return Pair(low, [pair.high]), Options(low + 1, None, 3)


def test_trees_of_named_tuples_and_dataclasses():
    found = describe(Records(), Pair(torch.ones(2), torch.ones(3)), Options(torch.ones(2)))
    assert [s.name for s in found.inputs] == ["pair_low", "pair_high", "options_scale"]
    pair = {"low": {"tensor": 0}, "high": {"list": [{"tensor": 1}]}}
    options = {"scale": {"tensor": 2}, "power": {"const": 3}, "shift": {"const": None}}
    assert found.output_tree == {
        "tuple": [{"named_tuple": ["Pair", pair]}, {"dataclass": ["Options", options]}]
    }


def test_named_tuples_and_dataclasses_come_back():
    inputs = (Pair(torch.rand(2), torch.rand(3)), Options(torch.rand(2)))
    model = tvmfuse.compile(Records().eval(), inputs, trials=0)
    pair, options = model(*inputs)
    want, wanted = Records()(*inputs)
    assert (type(pair).__name__, pair._fields) == ("Pair", ("low", "high"))
    torch.testing.assert_close(tuple(pair), tuple(want))
    torch.testing.assert_close(options.scale, wanted.scale)
    assert (options.shift, options.power) == (None, 3)
    assert isinstance(
        model(inputs[0], types.SimpleNamespace(**vars(inputs[1])))[0].low, torch.Tensor
    )
    with pytest.raises(InputError, match=r"\['power'\]: the model was compiled for 2, got 5"):
        model(inputs[0], Options(inputs[1].scale, None, 5))
    with pytest.raises(InputError, match="expected a Pair with low, high, got a tuple of 2"):
        model(tuple(inputs[0]), inputs[1])


def test_dicts_with_defaults_are_dicts():
    class Collects(nn.Module):
        def forward(self, x):
            found = collections.defaultdict(list)
            found["a"], found["b"], found["c"] = x, x + 1, x + 2
            return found

    keys = {"a": {"tensor": 0}, "b": {"tensor": 1}, "c": {"tensor": 2}}
    assert describe(Collects(), torch.ones(2)).output_tree == {"dict": keys}
