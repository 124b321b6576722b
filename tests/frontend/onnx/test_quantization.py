"""QDQ models: weights stay bytes until the kernels, and results are the standard's."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import tvmfuse
from tvmfuse.frontend.import_model import import_model
from tvmfuse.frontend.models import load_model
from tvmfuse.fusion.planner import make_plan
from tvmfuse.graph import bindings, dtype_of
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import lower

HERE = resolve_target("llvm", 2)


def _model(path, activation=np.uint8, zero=120, per_channel=True, transposed=True):
    """conv, relu, flatten, product; every edge through QuantizeLinear and DequantizeLinear."""
    rng = np.random.default_rng(0)
    constants, nodes = {}, []

    def constant(name, values):
        constants[name] = numpy_helper.from_array(np.asarray(values), name)
        return name

    def through(x, name, scale, point):
        s = constant(f"{name}_s", np.float32(scale))
        z = constant(f"{name}_z", activation(point))
        nodes.append(helper.make_node("QuantizeLinear", [x, s, z], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", s, z], [f"{name}_d"]))
        return f"{name}_d"

    def weight(name, shape):
        w = constant(name, rng.integers(-127, 128, shape).astype(np.int8))
        count = shape[0] if per_channel else 1
        scale = (rng.random(count) * 0.01 + 0.001).astype(np.float32)
        s = constant(f"{name}_s", scale if per_channel else scale.reshape(()))
        z = constant(f"{name}_z", np.zeros_like(scale, np.int8).reshape(() if count == 1 else -1))
        axis = {"axis": 0} if per_channel else {}
        nodes.append(helper.make_node("DequantizeLinear", [w, s, z], [f"{name}_d"], **axis))
        return f"{name}_d"

    x = through("x", "x", 0.03, zero)
    bias = constant("bias", rng.integers(-500, 500, 8).astype(np.int32))
    scale = constant("bias_s", np.float32(0.001))
    nodes.append(helper.make_node("DequantizeLinear", [bias, scale], ["bias_d"]))
    inputs = [x, weight("w", (8, 3, 3, 3)), "bias_d"]
    nodes.append(helper.make_node("Conv", inputs, ["y"], pads=[1, 1, 1, 1]))
    nodes.append(helper.make_node("Relu", ["y"], ["r"]))
    nodes.append(helper.make_node("Flatten", [through("r", "r", 0.05, zero)], ["f"]))
    v = weight("v", (12, 8 * 36))
    if transposed:
        nodes.append(helper.make_node("Transpose", [v], ["vt"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["f", "vt"], ["m"]))
    else:
        nodes.append(helper.make_node("Gemm", ["f", v], ["m"], transB=1))
    out = through("m", "m", 0.1, zero)
    graph = helper.make_graph(
        nodes, "qdq",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 6])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, [1, 12])],
        list(constants.values()),
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.parametrize("activation", [np.uint8, np.int8])
@pytest.mark.parametrize("per_channel", [True, False])
def test_a_model_runs_on_integers(tmp_path, activation, per_channel):
    zero = 120 if activation is np.uint8 else -8
    path = _model(tmp_path / "model.onnx", activation, zero, per_channel, per_channel)
    workload = import_model(str(path))
    lowered = lower(workload, HERE)
    sums = {
        b.var.name: dtype_of(b.var)
        for b in bindings(lowered.module["main"])
        if str(b.value).startswith(("R.call_tir(conv2d", "R.call_tir(dense"))
    }
    assert list(sums.values()) == ["int32", "int32"]
    assert len(make_plan(lowered, HERE).groups) <= 5
    loaded = load_model(str(path))
    x = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(3))
    compiled = tvmfuse.compile(loaded.module, (x,), trials=0, no_log=True, measure="none")
    with torch.no_grad():
        (want,) = loaded.module(x)
    (got,) = compiled(x)
    steps = (torch.from_dlpack(got) - want).abs().max() / 0.1
    assert steps < 1.01


def test_results_are_those_of_onnx_runtime(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    path = _model(tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(5).standard_normal((1, 3, 6, 6)).astype(np.float32)
    (want,) = session.run(None, {"x": x})
    (got,) = load_model(str(path)).module(torch.from_numpy(x))
    np.testing.assert_allclose(got.numpy(), want, atol=0.1001)


def test_an_odd_scale_is_computed_as_the_standard_says(tmp_path):
    """A scale of zero has no grid; the operators are said one by one, and give what they give."""
    path = _model(tmp_path / "model.onnx")
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name == "r_s":
            tensor.CopyFrom(numpy_helper.from_array(np.float32(0.0), "r_s"))
    onnx.save(model, path)
    module = load_model(str(path)).module
    assert not any("quantize_linear" in type(m).__name__ for m in module.modules())
    (got,) = module(torch.ones(1, 3, 6, 6))
    assert got.shape == (1, 12)
