"""Kernels whose operand or result lies in a larger tensor: they touch their part alone."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvmfuse.errors import BuildError
from tvmfuse.passes.relocate import Step, reading, reads_of, relocated


def doubled(shape):
    x = te.placeholder(shape, name="x")
    y = te.compute(shape, lambda *i: x(*i) * 2, "y")
    return te.create_prim_func([x, y])


def run(kernel, *tensors):
    machine = tvm.compile(kernel.with_attr("global_symbol", "main"), target="llvm")["main"]
    given = [tvm.runtime.tensor(t) for t in tensors]
    machine(*given)
    return given[-1].numpy()


@pytest.mark.parametrize(("axis", "offset"), [(0, 0), (0, 3), (1, 5), (1, 11)])
@pytest.mark.parametrize("place", [0, 1])
def test_a_kernel_touches_its_part_alone(axis, offset, place):
    shape, whole = (2, 7), [2, 7]
    whole[axis] = offset + shape[axis] + 4
    kernel = relocated(doubled(shape), place, tuple(whole), [Step(shape, shape, axis, offset)])
    part = [slice(None)] * 2
    part[axis] = slice(offset, offset + shape[axis])
    rng = np.random.default_rng(0)
    if place == 0:
        x = rng.random(whole, "float32")
        got, want = run(kernel, x, np.zeros(shape, "float32")), x[tuple(part)] * 2
    else:
        x, want = rng.random(shape, "float32"), np.full(whole, -1.0, "float32")
        got = run(kernel, x, want.copy())
        want[tuple(part)] = x * 2
    np.testing.assert_array_equal(got, want)


def test_through_merged_axes_and_two_concatenations():
    own, seen, inner, outer = (1, 3, 5, 2), (1, 15, 2), (1, 20, 2), (1, 20, 9)
    steps = [Step(own, seen, 1, 4), Step(inner, inner, 2, 6)]
    x = np.random.default_rng(0).random(own, "float32")
    want = np.full(outer, -1.0, "float32")
    got = run(relocated(doubled(own), 1, outer, steps), x, want.copy())
    want[:, 4:19, 6:8] = x.reshape(seen) * 2
    np.testing.assert_array_equal(got, want)


BAD = {
    "another extent": ((2, 7), (2, 7), (3, 20), 0),
    "too far": ((2, 7), (2, 7), (2, 20), 14),
    "another kernel": ((2, 8), (2, 8), (2, 20), 0),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_part_is_refused(name):
    own, seen, whole, offset = BAD[name]
    with pytest.raises(BuildError, match="is no part of one of"):
        relocated(doubled((2, 7)), 1, whole, [Step(own, seen, 1, offset)])


def test_split_axes_are_refused():
    with pytest.raises(BuildError, match="is no part of one of"):
        relocated(doubled((2, 7)), 1, (1, 2, 9), [Step((2, 7), (1, 2, 7), 2, 0),
                                                  Step((1, 14), (2, 7), 1, 0)])  # fmt: skip


def test_an_address_is_refused():
    old = doubled((2, 7))
    taken = tirx.Evaluate(tirx.call_extern("int32", "peek", old.params[1]))
    kernel = tirx.PrimFunc(old.params, tirx.SeqStmt([old.body, taken]), old.ret_type)
    with pytest.raises(BuildError, match="takes the address of"):
        relocated(kernel, 1, (2, 20), [Step((2, 7), (2, 7), 1, 0)])


def test_how_much_is_read():
    kernel = doubled((2, 7))
    assert reads_of(kernel) == [-1, -1]
    assert reads_of(reading(kernel, 0, 5)) == [5, -1]
