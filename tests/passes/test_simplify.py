"""Operators that do nothing go; the others stay."""

import numpy as np
import pytest
import torch
from torch import nn
from tvm import relax

from tvmfuse.passes.fold_constants import FoldConstants
from tvmfuse.passes.simplify import Simplify

X = ((1, 3, 7, 7), "float32")


def tidy(mod):
    """Without aliases and dead bindings."""
    mod = relax.transform.CanonicalizeBindings()(mod)
    return relax.transform.DeadCodeElimination(["main"])(mod)


def clean(mod):
    return tidy(Simplify()(mod))


def test_pool_to_the_same_size_goes(kit):
    mod = kit.written(lambda b, x: b.emit(relax.op.nn.adaptive_avg_pool2d(x, (7, 7))), X)
    assert "nn.adaptive_avg_pool2d" not in kit.ops(clean(mod))


def test_pool_to_one_pixel_is_a_mean(kit):
    module, x = nn.AdaptiveAvgPool2d(1), torch.randn(2, 3, 5, 7)
    after = clean(kit.imported(module, x))
    assert kit.count(after, "mean") == 1 and kit.count(after, "nn.adaptive_avg_pool2d") == 0
    kit.assert_same(kit.run(after, x.numpy()), kit.eager(module, x))


@pytest.mark.parametrize("size", [3, (1, 7), (7, 1)])
def test_pool_to_another_size_is_kept(kit, size):
    mod = kit.written(lambda b, x: b.emit(relax.op.nn.adaptive_avg_pool2d(x, size)), X)
    assert kit.count(clean(mod), "nn.adaptive_avg_pool2d") == 1


NOTHING = {
    "permute_dims": lambda x: relax.op.permute_dims(x, [0, 1, 2, 3]),
    "reshape": lambda x: relax.op.reshape(x, (1, 3, 7, 7)),
    "astype": lambda x: relax.op.astype(x, "float32"),
    "squeeze": lambda x: relax.op.squeeze(x, []),
}
SOMETHING = {
    "permute_dims": lambda x: relax.op.permute_dims(x, [0, 2, 3, 1]),
    "reshape": lambda x: relax.op.reshape(x, (1, 147)),
    "astype": lambda x: relax.op.astype(x, "float16"),
    "squeeze": lambda x: relax.op.squeeze(x, [0]),
    "expand_dims": lambda x: relax.op.expand_dims(x, 0),
}


def doubled(op):
    return lambda b, x: b.emit(relax.op.negative(b.emit(op(b.emit(relax.op.abs(x))))))


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_goes(kit, name):
    assert kit.ops(clean(kit.written(doubled(NOTHING[name]), X)))[:2] == ["abs", "negative"]


@pytest.mark.parametrize("name", SOMETHING)
def test_something_stays(kit, name):
    views = {"squeeze": "reshape", "expand_dims": "reshape"}  # all views get one name
    mod = clean(kit.written(doubled(SOMETHING[name]), X))
    assert kit.count(mod, views.get(name, name)) == 1


W = np.arange(24, dtype="float32").reshape(2, 3, 4)
LAYOUTS = {
    "permute_dims": (lambda c: relax.op.permute_dims(c, [2, 0, 1]), W.transpose(2, 0, 1)),
    "reversed": (lambda c: relax.op.permute_dims(c), W.T),
    "reshape": (lambda c: relax.op.reshape(c, (6, 4)), W.reshape(6, 4)),
    "expand_dims": (lambda c: relax.op.expand_dims(c, 0), W[None]),
    "flatten": (lambda c: relax.op.flatten(c), W.reshape(-1)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_of_a_constant_is_evaluated(kit, name):
    op, want = LAYOUTS[name]
    mod = kit.written(lambda b, x: b.emit(relax.op.negative(b.emit(op(relax.const(W))))), X)
    after = tidy(FoldConstants()(mod))
    assert kit.ops(after)[0] == "negative"
    kit.assert_same(kit.run(after, np.zeros(X[0], X[1])), [-want])


def test_chain_of_layouts_is_evaluated(kit):
    def body(b, x):
        turned = b.emit(relax.op.permute_dims(relax.const(W), [1, 0, 2]))
        return b.emit(relax.op.negative(b.emit(relax.op.reshape(turned, (3, 8)))))

    after = tidy(FoldConstants()(kit.written(body, X)))
    assert kit.ops(after)[0] == "negative"
    want = -W.transpose(1, 0, 2).reshape(3, 8)
    kit.assert_same(kit.run(after, np.zeros(X[0], X[1])), [want])


def test_layout_of_an_input_is_kept(kit):
    mod = kit.written(lambda b, x: b.emit(relax.op.permute_dims(x, [0, 2, 3, 1])), X)
    assert kit.count(FoldConstants()(mod), "permute_dims") == 1


def test_arithmetic_on_constants_is_kept(kit):
    mod = kit.written(lambda b, x: b.emit(relax.op.add(relax.const(W), relax.const(W))), X)
    assert kit.count(FoldConstants()(mod), "add") == 1
