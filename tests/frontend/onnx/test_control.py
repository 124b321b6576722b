"""If: decided at import where the condition is known, while the model runs where it is not."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import tvmfuse
from tvmfuse.errors import ImportModelError
from tvmfuse.frontend.models import load_model

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def branch(nodes, output, shape=(2, 4)):
    value = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)
    return helper.make_graph(nodes, output, [], [value])


def saved(path, then, otherwise):
    """An If on the sign of ``sum(x)``; branches read ``h = x @ w``, ``x`` and weights."""
    weights = [numpy_helper.from_array(np.eye(4, dtype=np.float32) * 2, "w"),
               numpy_helper.from_array(np.arange(4, dtype=np.float32), "b"),
               numpy_helper.from_array(np.float32(0), "zero")]  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], "choice", then_branch=then,
                         else_branch=otherwise),
        helper.make_node("Sigmoid", ["y"], ["z"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)], weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, path)
    return str(path)


THEN = [helper.make_node("Add", ["h", "b"], ["t"]), helper.make_node("Relu", ["t"], ["p"])]


@pytest.fixture
def file(tmp_path):
    return saved(tmp_path / "choice.onnx", branch(THEN, "p"),
                 branch([helper.make_node("Identity", ["x"], ["q"])], "q"))  # fmt: skip


def test_both_branches_are_kept(file):
    module = load_model(file).module
    with torch.no_grad():
        (true,), (false,) = module(X.abs()), module(-X.abs())
    torch.testing.assert_close(true, (X.abs() * 2 + torch.arange(4.0)).relu().sigmoid())
    torch.testing.assert_close(false, (-X.abs()).sigmoid())


def test_it_is_compiled_in_parts(file):
    loaded = load_model(file)
    model = tvmfuse.compile(loaded.module, loaded.example_inputs, trials=0, no_log=True)
    for x in (X.abs(), -X.abs()):
        with torch.no_grad():
            torch.testing.assert_close(model(x)[0], loaded.module(x)[0])
    kinds = [p["runs_in"] for p in model.report["parts"]]
    assert kinds.count("a choice") == 1 and set(kinds) == {"a choice", "tvmfuse"}
    why = next(p["why"] for p in model.report["parts"] if p["runs_in"] == "a choice")
    assert why == ["a value chooses a branch: node 'choice' (If)"]


def test_branches_that_differ_in_shape_are_refused(tmp_path):
    other = [helper.make_node("ReduceSum", ["x"], ["q"], keepdims=1)]
    path = saved(tmp_path / "shapes.onnx", branch(THEN, "p"), branch(other, "q", (1, 1)))
    with pytest.raises(ImportModelError, match=r"'choice' \(If\).*float32\[2, 4\].*\[1, 1\]"):
        load_model(path)


def test_integers_that_are_no_rows_of_a_small_table_are_drawn_again(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "i"], ["y"])], "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 3])],
        [numpy_helper.from_array(np.ones((2, 3), np.float32), "table")],
    )  # fmt: skip
    path = tmp_path / "table.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    (drawn,) = load_model(str(path)).example_inputs
    assert int(drawn.max()) < 2
