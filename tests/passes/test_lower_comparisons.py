"""NaN passes through comparisons as in PyTorch; integers are TVM's own business."""

import numpy as np
import pytest
import torch
import tvm_ffi
from torch import nn
from tvm import relax

from tvmfuse.passes.lower_comparisons import legalize_map


class Op(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *x):
        return self.function(*x)


OPS = {
    "relu": torch.relu,
    "relu6": nn.functional.relu6,
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "maximum": lambda x: torch.maximum(x, x.flip(-1)),
    "minimum": lambda x: torch.minimum(x, x.flip(-1)),
    "maximum of rows": lambda x: torch.maximum(x, x[:, :1]),
    "max_pool": lambda x: nn.functional.max_pool2d(x, 3, 2, 1),
    "max_pool ceil": lambda x: nn.functional.max_pool2d(x, 2, 2, ceil_mode=True),
    "max_pool dilated": lambda x: nn.functional.max_pool2d(x, 2, 1, dilation=2),
    "max_pool stride": lambda x: nn.functional.max_pool2d(x, 2, 3),
    "max_pool uneven": lambda x: nn.functional.max_pool2d(x, (3, 2), (1, 2), (1, 0)),
    "max_pool all": lambda x: nn.functional.max_pool2d(x, 3, 2, 1, ceil_mode=True, dilation=2),
}


def inputs():
    rng = np.random.default_rng(0)
    plain = rng.standard_normal((2, 3, 9, 8)).astype("float32")
    holes = plain.copy()
    holes[rng.random(plain.shape) < 0.08] = np.nan
    ends = plain.copy()
    ends[rng.random(plain.shape) < 0.1] = np.inf
    ends[rng.random(plain.shape) < 0.1] = -np.inf
    return {
        "plain": plain,
        "nan": holes,
        "inf": ends,
        "all nan": plain * np.nan,
        "lowest": np.full_like(plain, -np.inf),
    }


@pytest.mark.parametrize("name", OPS)
def test_as_eager(kit, name):
    module = Op(OPS[name])
    data = inputs()
    mod = kit.imported(module, torch.from_numpy(data["plain"]))
    lowered = relax.transform.LegalizeOps(legalize_map())(mod)
    for x in data.values():
        kit.assert_same(kit.run(lowered, x), kit.eager(module, torch.from_numpy(x)), rtol=0)


REDUCTIONS = [
    ("max", [2, 3], False), ("max", None, False), ("max", [-1], True), ("min", [1], True),
]  # fmt: skip


@pytest.mark.parametrize("name, axis, keepdims", REDUCTIONS)
def test_reduction_as_numpy(kit, name, axis, keepdims):
    def body(b, x):
        return b.emit(getattr(relax.op, name)(x, axis=axis, keepdims=keepdims))

    mod = kit.written(body, ((2, 3, 9, 8), "float32"))
    lowered = relax.transform.LegalizeOps(legalize_map())(mod)
    for x in inputs().values():
        want = getattr(x, name)(tuple(axis) if axis else None, keepdims=keepdims)
        kit.assert_same(kit.run(lowered, x), [np.asarray(want)], rtol=0)


def test_nan_on_either_side(kit):
    for function in (torch.maximum, torch.minimum):
        x, y = torch.tensor([1.0, float("nan"), 2.0]), torch.tensor([float("nan"), 1.0, 3.0])
        mod = kit.imported(Op(function), x, y)
        lowered = relax.transform.LegalizeOps(legalize_map())(mod)
        kit.assert_same(kit.run(lowered, x.numpy(), y.numpy()), kit.eager(Op(function), x, y), 0)


INTEGERS = {
    "relu": lambda x: relax.op.nn.relu(x),
    "maximum": lambda x: relax.op.maximum(x, relax.const(np.int32(3))),
    "max": lambda x: relax.op.max(x, axis=[1]),
    "max_pool2d": lambda x: relax.op.nn.max_pool2d(x, (2, 2)),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_untouched(kit, name):
    """The same kernels as TVM's own, and right."""
    types = ((1, 2, 4, 4), "int32")
    mod = kit.written(lambda b, x: b.emit(INTEGERS[name](x)), types)
    ours = relax.transform.LegalizeOps(legalize_map())(mod)
    stock = relax.transform.LegalizeOps()(mod)
    kit.tvm.ir.assert_structural_equal(ours, stock)


def test_floats_are_not_stock(kit):
    mod = kit.written(lambda b, x: b.emit(relax.op.nn.relu(x)), ((4,), "float32"))
    ours = relax.transform.LegalizeOps(legalize_map())(mod)
    assert not tvm_ffi.structural_equal(ours, relax.transform.LegalizeOps()(mod))


def test_dynamic_shapes_are_left_to_tvm(kit):
    n = kit.tvm.tirx.Var("n", "int64")
    mod = kit.written(lambda b, x: b.emit(relax.op.nn.relu(x)), ((n, 4), "float32"))
    ours = relax.transform.LegalizeOps(legalize_map())(mod)
    kit.tvm.ir.assert_structural_equal(ours, relax.transform.LegalizeOps()(mod))
