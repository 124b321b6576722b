"""Which tensors share memory: counted by hand on chains, and never two that are alive at once."""

import itertools

import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, te

from tvmfuse.passes.plan_memory import PlanMemory, _shared, _Tensor
from tvmfuse.passes.relax_tools import bindings, op_name


def doubled(builder, x, rows, *more):
    """``rows`` rows of twice the first row of ``x``."""

    def compute(x, *rest):
        return te.compute((rows, 4), lambda i, j: x[0, j] * 2 + sum(r[0, j] for r in rest), "y")

    return builder.emit_te(compute, x, *more)


def planned(body, rows=1):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(body(builder, x))
        builder.emit_func_output(out)
    passes = [
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        PlanMemory(),
    ]
    return tvm.transform.Sequential(passes)(builder.finalize())


def sizes(mod):
    """Bytes of the shared blocks, and how many tensors keep memory of their own."""
    values = [b.value for b in bindings(mod["main"]) if isinstance(b.value, relax.Call)]
    shared = [
        int(v.args[0].values[0]) for v in values if op_name(v) == "relax.memory.alloc_storage"
    ]
    return sorted(shared), sum(op_name(v) == "relax.builtin.alloc_tensor" for v in values)


def test_a_chain_needs_two_blocks_and_the_result_its_own():
    def body(builder, x):
        for rows in (8, 2, 8, 2, 8):
            x = doubled(builder, x, rows)
        return x

    assert sizes(planned(body)) == ([32, 128], 1)


def test_a_small_tensor_leaves_the_large_block_to_the_large_one():
    """In the order of the program the small one would take the first large block."""

    def body(builder, x):
        big = doubled(builder, x, 100)
        small = doubled(builder, big, 1)
        wide = doubled(builder, small, 100)
        last = doubled(builder, wide, 1, small)
        return doubled(builder, last, 3)

    shared, own = sizes(planned(body))
    assert (shared, own) == ([16, 16, 1600], 1)


def test_views_and_tuples_keep_their_tensor_alive():
    def body(builder, x):
        one = doubled(builder, x, 2)
        view = builder.emit(relax.op.reshape(one, (1, 8)))
        other = doubled(builder, x, 2)
        again = builder.emit(relax.op.reshape(view, (2, 4)))
        both = doubled(builder, again, 2, other)
        return doubled(builder, both, 1)

    assert sizes(planned(body)) == ([32, 32, 32], 1)


def test_results_in_tuples_and_views_keep_memory_of_their_own():
    def body(builder, x):
        one, other = doubled(builder, x, 2), doubled(builder, x, 3)
        return builder.emit(relax.Tuple([builder.emit(relax.op.reshape(one, (8,))), other]))

    assert sizes(planned(body)) == ([], 2)


LIFE = st.tuples(st.integers(1, 9), st.integers(0, 12), st.integers(0, 12))


@settings(deadline=None)
@given(st.lists(LIFE, max_size=14))
def test_nothing_shares_memory_with_what_is_alive(lives):
    tensors = [_Tensor(None, size, min(a, b), max(a, b)) for size, a, b in lives]
    storages = _shared(tensors)
    assert sorted(id(t) for s in storages for t in s.tensors) == sorted(map(id, tensors))
    for storage in storages:
        assert all(t.size <= storage.size for t in storage.tensors)
        ordered = sorted(storage.tensors, key=lambda t: t.begin)
        assert all(a.end < b.begin for a, b in itertools.pairwise(ordered))
    alive = [sum(t.size for t in tensors if t.begin <= now <= t.end) for now in range(13)]
    total = sum(s.size for s in storages)
    assert max(alive, default=0) <= total <= sum(t.size for t in tensors)
