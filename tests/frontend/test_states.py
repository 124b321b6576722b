"""Buffers that a model changes become inputs and outputs; served models keep them."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

import tvmfuse
import tvmfuse.cli
from tvmfuse.errors import ImportModelError, VerificationError
from tvmfuse.frontend.import_model import import_module
from tvmfuse.runtime import LoadedModel

X = torch.randn(1, 1, 16, generator=torch.Generator().manual_seed(0))


class Cache(nn.Module):
    """Keys and values of the last eight tokens, one persistent and one not, and a position."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.register_buffer("k", torch.zeros(1, 8, 16))
        self.register_buffer("v", torch.zeros(1, 8, 16), persistent=False)
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        place = torch.remainder(self.position, 8).reshape(1)
        self.k.index_copy_(1, place, k)
        self.v.index_copy_(1, place, v)
        self.position.add_(1)
        return torch.softmax(q @ self.k.mT, -1) @ self.v


class Outer(nn.Module):
    """The same inside of another module."""

    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList([Cache()])

    def forward(self, x):
        return self.inner[0](x) * 2


def seeded(kind):
    torch.manual_seed(1)
    return kind().eval()


@pytest.fixture(scope="module")
def compiled():
    module = seeded(Cache)
    return module, tvmfuse.compile(module, X, trials=0)


def loaded(compiled, tmp_path):
    return tvmfuse.load(compiled[1].save(tmp_path / "artifact"))


def tokens(count):
    return [torch.randn(1, 1, 16, generator=torch.Generator().manual_seed(i)) for i in range(count)]


def test_states_come_first_in_and_out():
    workload = import_module(seeded(Outer), (X,))
    assert [s.name for s in workload.states] == [f"inner.0.{n}" for n in ("k", "v", "position")]
    main = workload.module["main"]
    shapes = [tuple(int(e) for e in p.ty.shape) for p in main.params]
    assert shapes == [(1, 8, 16), (1, 8, 16), (), (1, 1, 16)]
    assert len(main.ret_ty.fields) == 4
    assert [s.name for s in workload.signature.inputs] == ["x"]
    assert len(workload.signature.outputs) == 1


def test_a_sequence_of_calls_is_eagers(compiled, tmp_path):
    model, module = loaded(compiled, tmp_path), seeded(Cache)
    with torch.no_grad():
        for x in tokens(11):  # around the end of the cache
            torch.testing.assert_close(model(x), module(x), rtol=1e-5, atol=1e-6)
    assert model.states["position"] == 11
    np.testing.assert_allclose(model.states["k"], module.k, rtol=1e-5, atol=1e-6)


def test_compiling_leaves_the_module_as_it_was(compiled):
    module, _ = compiled
    assert int(module.position) == 0 and not bool(module.k.any())


def test_the_report_has_a_sequence(compiled):
    model = compiled[1].report["verify"]["levels"]["model"]
    assert model["sequence"]["passed"]


def test_reset(compiled, tmp_path):
    model = loaded(compiled, tmp_path)
    first = model(X)
    second = model(X)
    assert not torch.equal(first, second)
    model.reset()
    assert model.states["position"] == 0
    torch.testing.assert_close(model(X), first, rtol=0, atol=0)


def test_two_loaded_models_share_nothing(compiled, tmp_path):
    folder = compiled[1].save(tmp_path / "artifact")
    one, other = tvmfuse.load(folder), tvmfuse.load(folder)
    one(X)
    assert (one.states["position"], other.states["position"]) == (1, 0)


def test_looking_is_no_call(compiled, tmp_path):
    model = loaded(compiled, tmp_path)
    model.watch((X,), lambda *_: None)
    assert model.states["position"] == 0


def test_every_call_of_many_threads_counts(compiled, tmp_path):
    model = loaded(compiled, tmp_path)
    threads = [threading.Thread(target=lambda: [model(X) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.states["position"] == 80


def test_a_failing_call_changes_nothing(compiled, tmp_path):
    model = loaded(compiled, tmp_path)
    with pytest.raises(tvmfuse.errors.InputError):
        model(X[..., :3])
    assert model.states["position"] == 0


def test_a_state_that_is_the_callers_array():
    """The model keeps an argument and returns its buffer: neither is shared with the caller."""

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("last", torch.zeros(16))

        def forward(self, x):
            before = self.last.clone()
            self.last.copy_(x)
            return before, self.last

    model = tvmfuse.compile(seeded(Last), torch.zeros(16), trials=0)
    x = torch.ones(16)
    _, kept = model(x)
    x.fill_(5.0)
    kept.fill_(7.0)
    before, _ = model(torch.zeros(16))
    torch.testing.assert_close(before, torch.ones(16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_types_of_states(dtype):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.full((4,), 0.5, dtype=dtype))

        def forward(self, x):
            self.total += x
            return self.total * 2

    model = tvmfuse.compile(seeded(Sum), torch.ones(4, dtype=dtype), trials=0)
    ones = torch.ones(4, dtype=dtype)
    assert [float(model(ones)[0]) for _ in range(3)] == [3.0, 5.0, 7.0]


def test_a_saved_program_keeps_its_state(tmp_path):
    program = torch.export.export(seeded(Outer), (X,))
    torch.export.save(program, tmp_path / "cache.pt2")
    code = tvmfuse.cli.main(
        ["compile", "--model", str(tmp_path / "cache.pt2"), "--trials", "0", "--no-log",
         "--output", str(tmp_path / "out"), "--json"]
    )  # fmt: skip
    assert code == 0
    model, module = tvmfuse.load(tmp_path / "out"), seeded(Outer)
    with torch.no_grad():
        for x in tokens(3):
            torch.testing.assert_close(model(x), module(x), rtol=1e-5, atol=1e-6)


def test_a_model_that_forgets_is_caught(monkeypatch):
    run = LoadedModel._run

    def forgetful(self, args):
        before = self._states
        result = run(self, args)
        self._states = before
        return result

    monkeypatch.setattr(LoadedModel, "_run", forgetful)
    with pytest.raises(VerificationError, match="sequence"):
        tvmfuse.compile(seeded(Cache), X, trials=0)


def test_changed_arguments_are_refused():
    class Writes(nn.Module):
        def forward(self, x):
            x += 1
            return x * 2

    with pytest.raises(ImportModelError, match="changes its inputs or parameters"):
        import_module(Writes().eval(), (torch.ones(3),))
