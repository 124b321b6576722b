import collections

import pytest
import torch
from torch import nn

from tvmfuse.errors import ImportModelError
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
