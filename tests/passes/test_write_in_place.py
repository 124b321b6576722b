"""Kernels write parts of a concatenation: numbers of eager, no kernel for the copy."""

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import te, tirx

import tvmfuse
from tvmfuse.errors import BuildError
from tvmfuse.passes.write_in_place import moved_result, write_in_place


def doubled(shape):
    x = te.placeholder(shape, name="x")
    y = te.compute(shape, lambda *i: x(*i) * 2, "y")
    return te.create_prim_func([x, y])


@pytest.mark.parametrize(("axis", "offset"), [(0, 0), (0, 3), (1, 5), (1, 11)])
def test_a_kernel_writes_its_part_alone(axis, offset):
    shape, whole = (2, 7), [2, 7]
    whole[axis] = offset + shape[axis] + 4
    kernel = moved_result(doubled(shape), tuple(whole), axis, offset)
    run = tvm.compile(kernel.with_attr("global_symbol", "main"), target="llvm")["main"]
    x = np.random.default_rng(0).random(shape, "float32")
    out = tvm.runtime.tensor(np.full(whole, -1.0, "float32"))
    run(tvm.runtime.tensor(x), out)
    want = np.full(whole, -1.0, "float32")
    place = [slice(None)] * 2
    place[axis] = slice(offset, offset + shape[axis])
    want[tuple(place)] = x * 2
    np.testing.assert_array_equal(out.numpy(), want)


def test_another_shape_is_refused():
    with pytest.raises(BuildError, match="cannot write a part"):
        moved_result(doubled((2, 7)), (3, 20), 1, 0)


def test_an_address_is_refused():
    old = doubled((2, 7))
    taken = tirx.Evaluate(tirx.call_extern("int32", "peek", old.params[1]))
    kernel = tirx.PrimFunc(old.params, tirx.SeqStmt([old.body, taken]), old.ret_type)
    with pytest.raises(BuildError, match="takes the address of its result"):
        moved_result(kernel, (2, 20), 1, 0)


def test_without_places_nothing_changes():
    mod = tvm.IRModule({"main": doubled((2, 7))})
    assert write_in_place(mod, ()) is mod


class Fire(nn.Module):
    """Three kinds of kernels side by side, in numbers of channels that no vector divides."""

    def __init__(self, widths, axis):
        super().__init__()
        self.axis = axis
        self.squeeze = nn.Conv2d(5, 11, 1)
        self.one = nn.Conv2d(11, widths[0], 1)
        self.three = nn.Conv2d(11, widths[1], 3, padding=1)
        self.pool = nn.Conv2d(11, widths[2], 1)
        self.last = nn.Conv2d(sum(widths) if axis == 1 else widths[0], 4, 3)

    def forward(self, x):
        x = torch.relu(self.squeeze(x))
        parts = [torch.relu(self.one(x)), self.three(x).sigmoid(),
                 nn.functional.avg_pool2d(self.pool(x), 3, 1, 1)]  # fmt: skip
        both = torch.cat(parts, self.axis)
        return self.last(both), torch.cat([both.amax(1), both.mean(1)], 1)


@pytest.mark.parametrize(
    ("widths", "axis", "batch"),
    [((16, 16, 8), 1, 1), ((5, 7, 3), 1, 2), ((1, 13, 1), 1, 1), ((6, 6, 6), 2, 1),
     ((6, 6, 6), 3, 2)],
)  # fmt: skip
def test_numbers_and_kernels(widths, axis, batch):
    torch.manual_seed(0)
    module, x = Fire(widths, axis).eval(), torch.randn(batch, 5, 7, 9)
    model = tvmfuse.compile(module, x, trials=0, no_log=True)
    assert model.report["fusion"]["diagonal"] >= 1
    assert model.report["verify"]["passed"]
    names = [kernel for kernel, _ in model._model.manifest.layers]
    assert sum("_at_" in name for name in names) >= 3
    assert len(names) == model.report["kernels"]["after"]
    assert model.report["records"]["missed"] <= len(names)  # the concatenations are no kernels
    with torch.no_grad():
        for got, want in zip(model(x), module(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_part_in_the_wrong_place_is_caught(monkeypatch):
    """Verification stands behind it: the layer that is the concatenation diverges."""
    from tvmfuse.passes import write_in_place as module

    real = module.moved_result

    def swapped(kernel, shape, axis, offset):
        return real(kernel, shape, axis, 8 if offset == 0 else 0)

    monkeypatch.setattr(module, "moved_result", swapped)
    net = nn.ModuleList([nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 3, padding=1)])

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return torch.cat([self.net[0](x).relu(), self.net[1](x)], 1)

    with pytest.raises(tvmfuse.errors.VerificationError, match="cat"):
        tvmfuse.compile(Two().eval(), torch.randn(1, 4, 6, 6), trials=0, no_log=True)
