"""ONNX graphs as modules: node tests with their own answers, folding, refusals that name nodes."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

import onnx_child
from onnx import TensorProto, helper
from onnx_child import REFUSED, RIGHT, WRONG, difference, judge, prepare

from tvmfuse.errors import ImportModelError, UnsupportedOperatorError
from tvmfuse.frontend.onnx.planner import FixedInputError, module_of

# Compiled; the rest of the sample runs in PyTorch only, which takes no time.
COMPILED = ["test_conv_with_strides_padding", "test_slice", "test_gemm_default_vector_bias",
            "test_add_uint16", "test_cast_FLOAT_to_FLOAT8E4M3FN"]  # fmt: skip
SAMPLE = [
    "test_lstm_with_peepholes", "test_gru_batchwise", "test_averagepool_2d_ceil",
    "test_maxpool_with_argmax_2d_precomputed_pads", "test_convtranspose_output_shape",
    "test_qlinearmatmul_2D_uint8_float32", "test_resize_downsample_scales_cubic_antialias",
    "test_scatternd_add", "test_top_k_smallest", "test_loop11", "test_scan9_sum",
    "test_center_crop_pad_crop", "test_stft_with_window", "test_if",
    "test_layer_normalization_2d_axis0",
    "test_bitshift_left_int32_negative_shift", "test_bitshift_right_int8_shift_ge_width",
    "test_bitshift_right_uint8", "test_group_normalization_epsilon",
    "test_gathernd_example_int32_batch_dim1", "test_roialign_aligned_true",
    "test_roialign_mode_max",
    "test_deform_conv_with_multiple_offset_groups", "test_deform_conv_with_mask_bias",
    "test_melweightmatrix", "test_dft_irfft", "test_col2im_5d", "test_div_uint64",
    "test_quantizelinear_uint4", "test_dequantizelinear_e4m3fn_zero_point",
    "test_maxunpool_export_with_output_shape", "test_split_to_sequence_2",
    "test_optional_has_element_empty_no_input_tensor_input",
]  # fmt: skip


def model_of(nodes, inputs, outputs, initializers=(), opset=17):
    """A model of float32 inputs (name to shape) and outputs."""
    infos = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in side.items()]
        for side in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "test", *infos, initializer=list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


@pytest.mark.parametrize("name", SAMPLE)
def test_node_test_in_pytorch(name):
    case = prepare(name)
    with torch.no_grad():
        outputs = case.module(*case.inputs)
        flat = [leaf for o in outputs for leaf in (o if isinstance(o, list) else [o])]
        assert difference(case, flat) == ""


def test_node_tests_compiled():
    results = judge(COMPILED)
    assert [r["outcome"] for r in results] == [RIGHT] * len(COMPILED), results
    assert {r["test"]: r["fixed"] for r in results}["test_slice"] == [
        "axes", "ends", "starts", "steps",
    ]  # fmt: skip


def test_a_wrong_result_is_seen(monkeypatch):
    real = onnx_child.compile_and_run
    monkeypatch.setattr(
        onnx_child, "compile_and_run", lambda *a: [torch.as_tensor(t) + 1 for t in real(*a)]
    )
    assert judge(["test_abs"])[0]["outcome"] == WRONG


def test_a_result_that_depends_on_values_is_refused():
    result = judge(["test_nonzero_example"])[0]
    assert result["outcome"] == REFUSED
    assert "node 'result' (NonZero)" in result["message"]


def test_arithmetic_on_shapes_leaves_no_step():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], end=1),
        helper.make_node("Concat", ["s", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["y"]),
    ]
    rest = onnx.numpy_helper.from_array(np.array([-1]), "rest")
    model = model_of(nodes, {"x": [2, 3, 4]}, {"y": [2, 12]}, [rest])
    module = module_of(model, {"x": torch.ones(2, 3, 4)})
    assert [key.partition("#")[0] for key in module.nodes] == ["node 'y' (Reshape)"]
    assert module(torch.ones(2, 3, 4))[0].shape == (2, 12)


def test_all_unknown_operators_are_named_with_their_nodes():
    nodes = [
        helper.make_node("StringNormalizer", ["x"], ["a"], name="first"),
        helper.make_node("Mystery", ["a"], ["y"], name="second", domain="com.example"),
    ]
    model = model_of(nodes, {"x": [2]}, {"y": [2]})
    with pytest.raises(UnsupportedOperatorError) as caught:
        module_of(model, {"x": torch.ones(2)})
    for part in ("2 ONNX operator", "'first' (StringNormalizer)", "'second' (com.example.Mystery)"):
        assert part in str(caught.value)


def test_an_input_that_decides_shapes_is_named():
    model = model_of([helper.make_node("Reshape", ["x", "to"], ["y"])], {"x": [4]}, {"y": [2, 2]})
    given = {"x": torch.ones(4), "to": torch.tensor([2, 2])}
    with pytest.raises(FixedInputError, match=r"node 'y' \(Reshape\).*'to'.*initializer") as caught:
        module_of(model, given)
    assert caught.value.names == {"to"}


def test_shapes_that_do_not_fit_name_the_node():
    model = model_of([helper.make_node("MatMul", ["x", "x"], ["y"], name="mm")], {"x": [2, 3]},
                     {"y": [2, 2]})  # fmt: skip
    with pytest.raises(ImportModelError, match=r"node 'mm' \(MatMul\)"):
        module_of(model, {"x": torch.ones(2, 3)})
