"""Reshapes sink behind element-wise operators where the kernel in front can then grow."""

import numpy as np
import pytest
from tvm import relax

from tvmfuse.passes.sink_reshapes import SinkReshapes

X, Y = ((6, 8), "float32"), ((2, 3, 8), "float32")


def run_both(kit, body, *types):
    mod = kit.written(body, *types)
    after = relax.transform.DeadCodeElimination(["main"])(SinkReshapes()(mod))
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype(d) for s, d in types]
    kit.assert_same(kit.run(after, *inputs), kit.run(mod, *inputs))
    return after


def ops(kit, mod):
    return [op for op in kit.ops(mod) if op]


def vector(n):
    return relax.const(np.arange(n, dtype="float32"))


OTHERS = {
    "itself": lambda r, y: (r, r),
    "tensor": lambda r, y: (r, y),
    "tensor first": lambda r, y: (y, r),
    "scalar": lambda r, y: (r, relax.const(2.0)),
    "vector along the last axis": lambda r, y: (r, vector(8)),
    "full constant": lambda r, y: (r, relax.const(np.ones((2, 3, 8), "float32"))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_it_sinks(kit, name):
    def body(b, x, y):
        wide = b.emit(relax.op.reshape(b.emit(relax.op.exp(x)), (2, 3, 8)))
        return b.emit(relax.op.add(*OTHERS[name](wide, y)))

    after = run_both(kit, body, X, Y)
    assert ops(kit, after)[-1] == "reshape" or name == "itself"


def test_a_value_that_is_read_twice_keeps_its_reshape(kit):
    def body(b, x, y):
        value = b.emit(relax.op.exp(x))
        total = b.emit(relax.op.add(b.emit(relax.op.reshape(value, (2, 3, 8))), y))
        again = b.emit(relax.op.reshape(b.emit(relax.op.abs(value)), (2, 3, 8)))
        return b.emit(relax.op.concat([total, again], 0))

    assert ops(kit, run_both(kit, body, X, Y))[:3] == ["exp", "reshape", "add"]


def test_a_broadcast_operand_keeps_it(kit):
    def body(b, x, y):
        wide = b.emit(relax.op.reshape(b.emit(relax.op.exp(x)), (2, 3, 8)))
        return b.emit(relax.op.add(wide, y))

    after = run_both(kit, body, X, ((1, 3, 8), "float32"))
    assert ops(kit, after) == ["exp", "reshape", "add"]


def test_an_input_has_no_kernel_to_join(kit):
    def body(b, x, y):
        return b.emit(relax.op.add(b.emit(relax.op.reshape(x, (2, 3, 8))), y))

    assert ops(kit, run_both(kit, body, X, Y)) == ["reshape", "add"]


def test_two_reshapes_are_one(kit):
    def body(b, x):
        return b.emit(relax.op.reshape(b.emit(relax.op.reshape(x, (48,))), (2, 3, 8)))

    assert ops(kit, run_both(kit, body, X)) == ["reshape"]
