"""Element types that PyTorch lacks: carried values against NumPy's, and what is refused."""

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tvmfuse.errors import ImportModelError
from tvmfuse.frontend.onnx.carried import KINDS, decoded, encoded
from tvmfuse.frontend.onnx.planner import module_of

FLOATS = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
BITS64 = np.array([0, 1, 2, 3, 7, 2**31, 2**32 + 5, 2**63 - 1, 2**63, 2**63 + 9, 2**64 - 1], "u8")


def ran(op, arrays, kind, out=None, attributes=(), opset=21):
    """The outputs of one node whose inputs have the element type ``kind``, as NumPy arrays."""
    kinds = [kind] * len(arrays) if isinstance(kind, int) else kind
    names = [f"x{i}" for i in range(len(arrays))]
    node = helper.make_node(op, names, ["y"], **dict(attributes))
    inputs = [
        helper.make_tensor_value_info(n, k, a.shape)
        for n, k, a in zip(names, kinds, arrays, strict=True)
    ]
    output = helper.make_tensor_value_info("y", out or kinds[0], None)
    graph = helper.make_graph([node], "test", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    given = {n: torch.from_numpy(a.copy()) for n, a in zip(names, arrays, strict=True)}
    return module_of(model, given)(*given.values())[0].numpy()


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize(
    ("op", "by"),
    [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Max", np.maximum),
     ("Div", np.floor_divide), ("Less", np.less), ("BitwiseXor", np.bitwise_xor)],
)  # fmt: skip
def test_unsigned_integers_wrap_as_numpy_does(dtype, op, by):
    top = np.iinfo(dtype).max
    a = np.array([0, 1, 5, top - 1, top, top // 2 + 1], dtype)
    b = np.array([top, 2, 7, 3, top, 3], dtype)
    kind = getattr(TensorProto, dtype.upper())
    found = ran(op, [a, b], kind, TensorProto.BOOL if op == "Less" else None)
    expected = by(a, b)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("op", "by"),
    [("Add", np.add), ("Mul", np.multiply), ("Div", np.floor_divide), ("Mod", np.remainder),
     ("Max", np.maximum), ("Greater", np.greater)],
)  # fmt: skip
def test_uint64_uses_all_its_bits(op, by):
    a, b = (m.reshape(-1) for m in np.meshgrid(BITS64, BITS64))
    if op in ("Div", "Mod"):
        a, b = a[b != 0], b[b != 0]
    found = ran(op, [a, b], TensorProto.UINT64, TensorProto.BOOL if op == "Greater" else None)
    np.testing.assert_array_equal(found, by(a, b))


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_uint64_shifts(direction):
    a, b = (m.reshape(-1) for m in np.meshgrid(BITS64, np.array([0, 1, 31, 62, 63], "u8")))
    found = ran("BitShift", [a, b], TensorProto.UINT64, attributes={"direction": direction})
    np.testing.assert_array_equal(found, a << b if direction == "LEFT" else a >> b)


def test_uint64_becomes_float_rounded_once():
    values = np.array([2**63 + 2**39 + 1, 2**64 - 1, 2**40 + 1, 3], "u8")
    to = {"to": TensorProto.FLOAT}
    found = ran("Cast", [values], TensorProto.UINT64, TensorProto.FLOAT, to)
    np.testing.assert_array_equal(found, values.astype(np.float32))
    to = {"to": TensorProto.UINT64}
    back = ran("Cast", [found[:1]], TensorProto.FLOAT, TensorProto.UINT64, to)
    np.testing.assert_array_equal(back, found[:1].astype("u8"))


@pytest.mark.parametrize("name", FLOATS)
def test_eight_bit_floats_round_to_the_nearest(name):
    kind = getattr(TensorProto, name)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    values = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    finite = np.sort(values[np.isfinite(values)])
    between = (finite[1:] + finite[:-1]) / 2
    x = np.concatenate([finite, between, np.nextafter(between, 0), np.nextafter(between, np.inf)])
    code = encoded(torch.from_numpy(x), kind)
    np.testing.assert_array_equal(code.numpy(), x.astype(dtype).view(np.uint8))
    np.testing.assert_array_equal(decoded(code, kind).numpy(), x.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("name", FLOATS)
def test_what_is_too_large_saturates_only_where_asked(name):
    kind = getattr(TensorProto, name)
    largest = float(ml_dtypes.finfo(helper.tensor_dtype_to_np_dtype(kind)).max)
    x = torch.tensor([1e9, -1e9, float("inf"), float("nan")])
    kept = decoded(encoded(x, kind), kind)
    assert kept[:3].tolist() == [largest, -largest, largest] and kept[3].isnan()
    assert not decoded(encoded(x, kind, saturate=False), kind).isfinite().any()


def test_four_bits_quantise_to_their_range():
    x = np.array([-100.0, -3.2, 0.0, 5.0, 100.0], np.float32)
    scale, zero = np.array(2.0, np.float32), np.array(1, np.int8)
    kinds = [TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT4]
    found = ran("QuantizeLinear", [x, scale, zero], kinds, TensorProto.INT4)
    assert found.tolist() == [-8, -1, 1, 3, 7]


def test_weights_of_four_bits_leave_no_carried_value_behind():
    weight = helper.make_tensor("w", TensorProto.INT4, [2, 3], [-8, 7, 1, 0, -1, 3])
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.5])
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["d"]),
             helper.make_node("MatMul", ["x", "d"], ["y"])]  # fmt: skip
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "test", [info("x", TensorProto.FLOAT, [1, 2])],
        [info("y", TensorProto.FLOAT, [1, 3])], initializer=[weight, scale],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    module = module_of(model, {"x": torch.ones(1, 2)})
    assert [n.call.op for n in module.nodes.values()] == ["MatMul"]
    assert module(torch.ones(1, 2))[0].tolist() == [[-4.0, 3.0, 2.0]]


@pytest.mark.parametrize(
    ("op", "kind", "dtype"),
    [("ReduceProd", TensorProto.UINT64, "u8"), ("Relu", TensorProto.FLOAT8E4M3FN, "u1"),
     ("Neg", TensorProto.INT4, "i1")],
)  # fmt: skip
def test_other_operators_refuse_with_the_type(op, kind, dtype):
    with pytest.raises(ImportModelError, match=f"{op}.*not known for {KINDS[kind].name}"):
        ran(op, [np.ones(4, dtype)], kind)


def test_a_carried_type_in_a_sequence_is_refused():
    with pytest.raises(ImportModelError, match="puts UINT16 into a sequence"):
        ran("SplitToSequence", [np.ones(4, "u2")], TensorProto.UINT16)


def test_interpolated_integers_are_refused():
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear")
    info = helper.make_tensor_value_info
    scales = helper.make_tensor("s", TensorProto.FLOAT, [1], [2.0])
    ends = [info("x", TensorProto.UINT8, [4])], [info("y", TensorProto.UINT8, [8])]
    graph = helper.make_graph([node], "test", *ends, initializer=[scales])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    with pytest.raises(ImportModelError, match="interpolates integers"):
        module_of(model, {"x": torch.arange(4, dtype=torch.uint8)})


def test_a_declared_type_that_nothing_carries_is_named():
    with pytest.raises(ImportModelError, match="FLOAT4E2M1"):
        proto = onnx.TensorProto(data_type=TensorProto.FLOAT4E2M1, name="w")
        from tvmfuse.frontend.onnx.tensors import to_tensor

        to_tensor(proto)
