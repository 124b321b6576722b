"""Which tensors share memory: counted by hand on chains, and never two that are alive at once."""

import itertools

import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from tvm import relax, te

import tvmfuse
from tvmfuse.passes import plan_memory
from tvmfuse.passes.plan_memory import PlanMemory, _in_one, _shared, _Tensor, _with_results
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
    assert sorted(id(t) for s in storages for t, _ in s.tensors) == sorted(map(id, tensors))
    for storage in storages:
        assert all(at == 0 and t.size <= storage.size for t, at in storage.tensors)
        ordered = sorted((t for t, _ in storage.tensors), key=lambda t: t.begin)
        assert all(a.end < b.begin for a, b in itertools.pairwise(ordered))
    alive = [sum(t.size for t in tensors if t.begin <= now <= t.end) for now in range(13)]
    total = sum(s.size for s in storages)
    assert max(alive, default=0) <= total <= sum(t.size for t in tensors)


@settings(deadline=None)
@given(st.lists(LIFE, max_size=14))
def test_nothing_overlaps_in_one_block(lives):
    tensors = [_Tensor(None, 64 * size - 1, min(a, b), max(a, b)) for size, a, b in lives]
    arena = _in_one(tensors)
    assert len(arena.tensors) == len(tensors)
    for tensor, at in arena.tensors:
        assert at % 64 == 0 and at + tensor.size <= arena.size
    for (one, at), (other, there) in itertools.combinations(arena.tensors, 2):
        apart = at + one.size <= there or there + other.size <= at
        assert apart or not one.meets(other)


RESULTS = st.lists(st.tuples(LIFE, st.booleans()), max_size=14)


@settings(deadline=None)
@given(RESULTS)
def test_results_lend_their_blocks_only_before_they_are_written(lives):
    tensors = [
        _Tensor(None, 64 * size, min(a, b), 12 if kept else max(a, b), kept)
        for (size, a, b), kept in lives
    ]
    storages = _with_results(tensors)
    assert sorted(id(t) for s in storages for t, _ in s.tensors) == sorted(map(id, tensors))
    for storage in storages:
        assert sum(t.kept for t, _ in storage.tensors) <= 1
        assert all(at + t.size <= storage.size for t, at in storage.tensors)
        for (one, at), (other, there) in itertools.combinations(storage.tensors, 2):
            apart = at + one.size <= there or there + other.size <= at
            assert apart or not one.meets(other)
            assert not (one.kept or other.kept) or not one.meets(other)


def test_a_result_lends_its_block(monkeypatch):
    """Two wide tensors die before the wide result is made: one of them lies in its block."""

    def body(builder, x):
        wide = doubled(builder, doubled(builder, x, 100), 100)
        return doubled(builder, doubled(builder, wide, 1), 100)

    assert sizes(planned(body)) == ([1600, 1600], 1)
    monkeypatch.setattr(plan_memory, "_WORTH_BYTES", 1)
    assert sizes(planned(body)) == ([16, 1600, 1600], 0)


class Several(nn.Module):
    """Three results of the size of what lies between, and a view of one of them."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))

    def forward(self, x):
        results = []
        for conv in self.convs:
            x = torch.relu(conv(torch.tanh(conv(x)).flip(3)))
            results.append(x.softmax(1))
        return results[0], {"last": results[-1], "flat": results[1].flatten(1)}, results[2]


@pytest.mark.parametrize("calls", [1, 4])
def test_a_call_leaves_the_results_of_others_alone(monkeypatch, calls):
    monkeypatch.setattr(plan_memory, "_WORTH_BYTES", 1)
    module = Several().eval()
    given_x = [torch.randn(1, 4, 8, 12) for _ in range(calls)]
    model = tvmfuse.compile(module, (given_x[0],), trials=0, no_log=True)
    kept = [model(x) for x in given_x]  # none is copied, all are compared at the end
    with torch.no_grad():
        for x, got in zip(given_x, kept, strict=True):
            first, rest, third = module(x)
            for one, want in (
                (got[0], first), (got[1]["last"], rest["last"]), (got[1]["flat"], rest["flat"]),
                (got[2], third),
            ):  # fmt: skip
                torch.testing.assert_close(torch.from_dlpack(one), want, rtol=1e-4, atol=1e-5)


class Branches(nn.Module):
    """One large tensor, and then three of half its size at once: two fit where it lay."""

    def __init__(self):
        super().__init__()
        self.large = nn.Conv2d(4, 32, 3, padding=1)
        self.first = nn.Conv2d(32, 16, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(5))

    def forward(self, x):
        c, d, e, f, g = self.convs
        y = torch.relu(self.first(torch.relu(self.large(x))))
        z = torch.relu(c(y))
        return g(f(e(torch.relu(d(z))) + z) + y)


@pytest.mark.slow
def test_tensors_inside_of_a_block_give_eager_s_numbers(monkeypatch, tmp_path):
    module, x = Branches().eval(), torch.randn(1, 4, 16, 20)

    def compiled(name):
        model = tvmfuse.compile(module, (x,), trials=0, threads=2, log_dir=tmp_path / name)
        for given_x in (x, x.flip(3), x):
            got = torch.from_dlpack(model(given_x))
            torch.testing.assert_close(got, module(given_x), rtol=1e-4, atol=1e-5)
        return model.report["intermediates"]

    whole = compiled("whole")
    monkeypatch.setattr(plan_memory, "_WORTH_BYTES", 1)
    inside = compiled("inside")
    assert inside["memory_bytes"] < whole["memory_bytes"]
    assert inside["kernels"] == whole["kernels"]
    assert inside["read_bytes"] == whole["read_bytes"]
