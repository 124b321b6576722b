"""Slices of element-wise values behind a view are cut first, where they share nothing."""

import numpy as np
import pytest
from tvm import relax

from tvmfuse.passes.hoist_slices import HoistSlices

SHAPE = (1, 3, 7, 11)


def cut(b, x, begin, end, axis=-1, step=1):
    return b.emit(relax.op.strided_slice(x, [axis], [begin], [end], [step]))


def moved(kit, cuts, front="turn", more=()):
    """Operators behind the pass, of which the first two are the view and what follows it."""

    def body(b, x):
        if front == "turn":
            x = b.emit(relax.op.permute_dims(x, (0, 1, 3, 2)))
        if front == "view":
            x = b.emit(relax.op.reshape(x, (3, 11, 7)))
        if front == "kernel":
            x = b.emit(relax.op.exp(x))
        wide = b.emit(relax.op.sigmoid(x))
        parts = [b.emit(relax.op.negative(cut(b, wide, *c))) for c in cuts]
        return b.emit(relax.Tuple([*parts, *(b.emit(f(wide)) for f in more)]))

    mod = kit.written(body, (SHAPE, "float32"))
    after = relax.transform.DeadCodeElimination(["main"])(HoistSlices()(mod))
    x = np.random.default_rng(0).random(SHAPE, "float32")
    kit.assert_same(kit.run(after, x), kit.run(mod, x))
    return [op for op in kit.ops(after) if op]


FIRES = {
    "three parts": [(0, 2), (2, 4), (4, 7)],
    "one alone": [(1, 2)],
    "out of order, with a gap": [(5, 7), (0, 2)],
    "from behind": [(-2, 100), (0, 5)],
    "another axis": [(0, 2, 0), (2, 3, 0)],
}


@pytest.mark.parametrize("front", ["turn", "view"])
@pytest.mark.parametrize("name", FIRES)
def test_it_fires(kit, name, front):
    cuts = [c if front == "view" or len(c) < 3 else (*c[:2], 1) for c in FIRES[name]]
    ops = moved(kit, cuts, front)
    assert ops.count("sigmoid") == ops.count("strided_slice") == len(cuts)
    assert ops[1:3] == ["strided_slice", "sigmoid"]


STAYS = {
    "they share elements": ([(0, 3), (2, 7)], "turn", ()),
    "the same twice": ([(0, 3), (0, 3)], "turn", ()),
    "two axes": ([(0, 3), (0, 2, 1)], "turn", ()),
    "a step": ([(0, 7, -1, 2)], "turn", ()),
    "a kernel in front": ([(0, 2), (2, 7)], "kernel", ()),
    "an input in front": ([(0, 2), (2, 7)], "", ()),
    "read as a whole as well": ([(0, 2), (2, 7)], "turn", (relax.op.exp,)),
    "returned as well": ([(0, 2), (2, 7)], "turn", (lambda x: x,)),
}


@pytest.mark.parametrize("name", STAYS)
def test_it_refuses(kit, name):
    cuts, front, more = STAYS[name]
    ops = moved(kit, cuts, front, more)
    assert ops.count("sigmoid") == 1
    assert ops.index("sigmoid") < ops.index("strided_slice")
