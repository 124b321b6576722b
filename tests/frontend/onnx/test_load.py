"""Files: open extents, external data, and errors that say what is wrong with which file."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tvmfuse.errors import ImportModelError, OptionError
from tvmfuse.frontend.models import load_model


@pytest.fixture
def file(tmp_path):
    """``y = x @ w`` with an open batch, its weight beside the file."""
    weight = np.arange(512, dtype=np.float32).reshape(4, 128)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 128])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path = tmp_path / "linear.onnx"
    onnx.save(model, path, save_as_external_data=True, location="linear.data", size_threshold=0)
    return path


def test_batch_fills_the_open_extent_and_external_data_is_read(file):
    loaded = load_model(str(file), batch=3)
    assert loaded.name == "linear"
    assert [tuple(t.shape) for t in loaded.example_inputs] == [(3, 4)]
    weight = torch.arange(512.0).reshape(4, 128)
    torch.testing.assert_close(loaded.module(*loaded.example_inputs)[0],
                               loaded.example_inputs[0] @ weight)  # fmt: skip


def test_shape_that_contradicts_the_file(file):
    assert load_model(str(file), shape="5,4").example_inputs[0].shape == (5, 4)
    with pytest.raises(OptionError, match=r"'x' has the shape \(n, 4\) in the file, not \(5, 6\)"):
        load_model(str(file), shape="5,6")
    with pytest.raises(OptionError, match="the model has 1 input"):
        load_model(str(file), shape="5,4;5,4")


def test_missing_file_and_data_are_named(file):
    with pytest.raises(ImportModelError, match=r"no such file: 'nothing.onnx'$"):
        load_model("nothing.onnx")
    (file.parent / "linear.data").unlink()
    with pytest.raises(ImportModelError, match=r"cannot load .*linear.onnx.*linear.data"):
        load_model(str(file))


def test_a_file_that_is_no_model_and_weights_are_refused(file, tmp_path):
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(ImportModelError, match=r"cannot load .*text.onnx"):
        load_model(str(tmp_path / "text.onnx"))
    with pytest.raises(OptionError, match="has its own"):
        load_model(str(file), weights="random")
