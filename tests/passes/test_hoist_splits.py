"""Splits of an axis move in front of a transpose; what merges axes stays behind it."""

import numpy as np
import pytest
from tvm import relax

from tvmfuse.passes.hoist_splits import HoistSplits


def moved(kit, shape, order, into):
    def body(b, x):
        turned = b.emit(relax.op.permute_dims(x, order))
        return b.emit(relax.op.reshape(turned, into))

    mod = kit.written(body, (shape, "float32"))
    after = relax.transform.DeadCodeElimination(["main"])(HoistSplits()(mod))
    x = np.random.default_rng(0).random(shape, "float32")
    (got,) = kit.run(after, x)
    np.testing.assert_array_equal(got, x.transpose(order).reshape(into))
    return [op for op in kit.ops(after) if op]


FIRES = {
    "anchors and classes": ((1, 5, 7, 33), (0, 3, 1, 2), (1, 3, 11, 5, 7)),
    "two axes": ((6, 1, 35), (2, 0, 1), (5, 7, 2, 3, 1)),
    "ones in between": ((4, 9), (1, 0), (1, 3, 1, 3, 4, 1)),
    "an axis of one": ((1, 6, 5), (2, 0, 1), (5, 1, 1, 2, 3)),
    "equal extents": ((3, 9, 3), (1, 2, 0), (3, 3, 3, 3)),
}


@pytest.mark.parametrize("name", FIRES)
def test_it_fires(kit, name):
    assert moved(kit, *FIRES[name]) == ["reshape", "permute_dims"]


STAYS = {
    "merged": ((4, 5, 6), (2, 0, 1), (6, 20)),
    "merged and split": ((4, 6, 5), (1, 0, 2), (3, 8, 5)),
    "the shape it has": ((4, 5), (1, 0), (5, 4)),
    "merged alone, an axis of one": ((1, 5, 6), (2, 0, 1), (6, 5)),
}


@pytest.mark.parametrize("name", STAYS)
def test_it_refuses(kit, name):
    ops = moved(kit, *STAYS[name])
    assert ops[0] == "permute_dims"


def test_a_split_of_no_transpose_stays(kit):
    mod = kit.written(
        lambda b, x: b.emit(relax.op.reshape(b.emit(relax.op.exp(x)), (2, 3, 8))),
        ((6, 8), "float32"),
    )
    assert kit.ops(HoistSplits()(mod)) == kit.ops(mod)
