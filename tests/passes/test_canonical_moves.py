"""Data movement in canonical form computes the same, with fewer or thinner operators."""

import numpy as np
import pytest
from tvm import relax

from tvmfuse.passes.canonical_moves import CanonicalMoves
from tvmfuse.passes.relax_tools import bindings, op_name, shape_of

X = ((4, 1, 3, 8), "float32")


def run_both(kit, body, *types):
    mod = kit.written(body, *types)
    after = relax.transform.DeadCodeElimination(["main"])(CanonicalMoves()(mod))
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype(d) for s, d in types]
    kit.assert_same(kit.run(after, *inputs), kit.run(mod, *inputs))
    return after


@pytest.mark.parametrize("index", [0, 2, -1])
def test_one_index_is_a_slice(kit, index):
    after = run_both(kit, lambda b, x: relax.op.take(x, relax.const(index), axis=2), X)
    assert (kit.count(after, "take"), kit.count(after, "strided_slice")) == (0, 1)


def test_a_gather_stays(kit):
    rows = relax.const(np.array([0, 2]))
    after = run_both(kit, lambda b, x: relax.op.take(x, rows, axis=2), X)
    assert kit.count(after, "take") == 1


@pytest.mark.parametrize("parts", [4, [1, 3, 7]])
def test_split_is_slices(kit, parts):
    def body(b, x):
        pieces = b.emit(relax.op.split(x, parts, axis=-1))
        return b.emit(relax.op.add(b.emit(pieces[1]), relax.const(1.0)))

    after = run_both(kit, body, X)
    assert (kit.count(after, "split"), kit.count(after, "strided_slice")) == (0, 1)


def test_transpose_of_unit_axes_is_a_view(kit):
    after = run_both(kit, lambda b, x: relax.op.permute_dims(x, [1, 0, 2, 3]), X)
    assert (kit.count(after, "permute_dims"), kit.count(after, "reshape")) == (0, 1)


def test_transpose_without_its_unit_axes(kit):
    after = run_both(kit, lambda b, x: relax.op.permute_dims(x, [3, 0, 1, 2]), X)
    assert kit.count(after, "permute_dims") == 1


@pytest.mark.parametrize("axis", [0, 1])
def test_slice_goes_before_transpose_and_reshape(kit, axis):
    def body(b, x):
        moved = b.emit(relax.op.permute_dims(x, [2, 0, 1, 3]))
        thin = b.emit(relax.op.reshape(moved, (3, 4, 8)))
        return b.emit(relax.op.strided_slice(thin, axes=[axis], begin=[1], end=[3]))

    after = run_both(kit, body, X)
    order = [o for o in kit.ops(after) if o in ("strided_slice", "permute_dims")]
    assert order == ["strided_slice", "permute_dims"]


def products(shape):
    def body(b, x):
        w = np.random.default_rng(1).standard_normal((8, 5)).astype("float32")
        return b.emit(relax.op.matmul(x, relax.const(w)))

    return body, (shape, "float32")


@pytest.mark.parametrize("shape", [(197, 1, 8), (3, 4, 7, 8), (2, 1, 1, 8)])
def test_few_rows_in_many_matrices_are_one_matrix(kit, shape):
    after = run_both(kit, *products(shape))
    (found,) = [b for b in bindings(after["main"]) if op_name(b.value) == "relax.matmul"]
    assert shape_of(found.value) == (np.prod(shape[:-1]), 5)


@pytest.mark.parametrize("shape", [(1, 1, 8), (1, 7, 8), (3, 8, 8), (2, 49, 8), (7, 8)])
def test_products_of_many_rows_and_of_one_matrix_stay(kit, shape):
    after = run_both(kit, *products(shape))
    assert kit.count(after, "reshape") == 0
