"""Transposes sink through element-wise operators and cancel; others stay where they are."""

import numpy as np
import pytest
from tvm import relax

from tvmfuse.passes.cancel_transposes import CancelTransposes

X = ((1, 3, 5, 7), "float32")
THERE, BACK = [0, 2, 3, 1], [0, 3, 1, 2]


def between(middle):
    """``permute(middle(permute(x)))`` with inverse permutations."""

    def body(b, x):
        inside = b.emit(middle(b, b.emit(relax.op.permute_dims(x, THERE))))
        return b.emit(relax.op.permute_dims(inside, BACK))

    return body


CANCEL = {
    "clip": lambda b, x: relax.op.clip(x, 0, 6),
    "erf": lambda b, x: relax.op.erf(x),
    "scalar on the right": lambda b, x: relax.op.add(x, relax.const(3.0, "float32")),
    "scalar on the left": lambda b, x: relax.op.subtract(relax.const(3.0, "float32"), x),
    "itself twice": lambda b, x: relax.op.multiply(x, x),
    "a constant vector along an axis": lambda b, x: relax.op.add(
        x, relax.const(np.arange(3, dtype="float32"))
    ),
    "a constant of less rank": lambda b, x: relax.op.multiply(
        relax.const(np.arange(21, dtype="float32").reshape(7, 3)), x
    ),
    "chain": lambda b, x: relax.op.exp(b.emit(relax.op.clip(x, 0, 1))),
}


@pytest.mark.parametrize("name", CANCEL)
def test_a_pair_around_an_elementwise_operator_goes(kit, name):
    mod = kit.written(between(CANCEL[name]), X)
    after = relax.transform.DeadCodeElimination(["main"])(CancelTransposes()(mod))
    assert kit.count(after, "permute_dims") == 0
    x = np.random.default_rng(0).standard_normal(X[0]).astype("float32")
    kit.assert_same(kit.run(after, x), kit.run(mod, x))


KEEP = {
    "softmax works along an axis": lambda b, x: relax.op.nn.softmax(x, -1),
    "cumsum works along an axis": lambda b, x: relax.op.cumsum(x, 1),
}


@pytest.mark.parametrize("name", KEEP)
def test_a_pair_around_anything_else_stays(kit, name):
    mod = kit.written(between(KEEP[name]), X)
    after = relax.transform.DeadCodeElimination(["main"])(CancelTransposes()(mod))
    assert kit.count(after, "permute_dims") == 2
    x = np.random.default_rng(0).standard_normal(X[0]).astype("float32")
    kit.assert_same(kit.run(after, x), kit.run(mod, x))


def test_two_operands_must_come_through_the_same_transpose(kit):
    def body(b, x, y):
        one = b.emit(relax.op.permute_dims(x, [0, 2, 1]))
        other = b.emit(relax.op.permute_dims(y, [1, 2, 0]))
        return b.emit(relax.op.permute_dims(b.emit(relax.op.add(one, other)), [0, 2, 1]))

    mod = kit.written(body, ((2, 2, 2), "float32"), ((2, 2, 2), "float32"))
    after = relax.transform.DeadCodeElimination(["main"])(CancelTransposes()(mod))
    assert kit.count(after, "permute_dims") == 3
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((2, 2, 2)).astype("float32") for _ in range(2))
    kit.assert_same(kit.run(after, x, y), kit.run(mod, x, y))


def test_transposes_that_do_not_cancel_become_one(kit):
    def body(b, x):
        once = b.emit(relax.op.permute_dims(x, THERE))
        return b.emit(relax.op.permute_dims(once, THERE))

    mod = kit.written(body, X)
    after = relax.transform.DeadCodeElimination(["main"])(CancelTransposes()(mod))
    assert kit.count(after, "permute_dims") == 1
    x = np.random.default_rng(0).standard_normal(X[0]).astype("float32")
    kit.assert_same(kit.run(after, x), kit.run(mod, x))
