"""Kernels write parts of a concatenation: numbers of eager, no kernel for the copy."""

import pytest
import torch
import tvm
from torch import nn
from tvm import te

import tvmfuse
from tvmfuse.passes.relocate import Step
from tvmfuse.passes.write_in_place import write_in_place


def doubled(shape):
    x = te.placeholder(shape, name="x")
    y = te.compute(shape, lambda *i: x(*i) * 2, "y")
    return te.create_prim_func([x, y])


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


class Nested(nn.Module):
    """Rows beside each other, and they beside other channels; a part is read again."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(6, 5, 3, padding=1), nn.Conv2d(6, 7, 1)
        self.c = nn.Conv2d(5, 3, 3)

    def forward(self, x):
        part = torch.relu(self.a(x))
        rows = torch.cat([part, self.a(x + 1)], 2)
        both = torch.cat([self.b(torch.cat([x, x * 2], 2)), rows], 1)
        return both.amax(1), self.c(part), both.mean((2, 3))


def test_one_within_another_along_another_axis():
    module, x = Nested().eval(), torch.randn(2, 6, 9, 5)
    model = tvmfuse.compile(module, x, trials=0, no_log=True)
    names = [kernel for kernel, _ in model._model.manifest.layers]
    assert not any("concat" in name for name in names), names
    for given in (x, x.flip(2)):
        with torch.no_grad():
            for got, want in zip(model(given), module(given), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


class Stage(nn.Module):
    """Two branches of one input, as in a C3 block: the second is a part of the result as it is."""

    def __init__(self, depth, residual):
        super().__init__()
        self.residual = residual
        self.first, self.second = nn.Conv2d(12, 8, 1), nn.Conv2d(12, 5, 1)
        self.inner = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 1), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1))
            for _ in range(depth)
        )
        self.last = nn.Conv2d(13, 6, 1)

    def forward(self, x):
        silu = nn.functional.silu
        inner = silu(self.first(x))
        for step in self.inner:
            inner = silu(step(inner)) + inner if self.residual else silu(step(inner))
        both = torch.cat([inner, silu(self.second(x))], 1)
        return self.last(both), both.mean((2, 3))


@pytest.mark.parametrize(
    ("depth", "batch", "residual"), [(1, 1, False), (2, 2, False), (2, 1, True), (3, 2, True)]
)
def test_a_concatenation_takes_the_place_of_a_tensor_of_which_it_holds_a_part(
    depth, batch, residual
):
    module, x = Stage(depth, residual).eval(), torch.randn(batch, 12, 9, 7)
    model = tvmfuse.compile(module, x, trials=0, no_log=True)
    # To channels last, both branches, two a step, the last one and back, and the mean.
    assert model.report["kernels"]["after"] == 2 + 2 * depth + 3
    assert model.report["fusion"]["horizontal"] == 1
    with torch.no_grad():
        for given in (x, x.flip(2)):
            for got, want in zip(model(given), module(given), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_part_in_the_wrong_place_is_caught(monkeypatch):
    """Verification stands behind it: the layer that is the concatenation diverges."""
    from tvmfuse.passes import write_in_place as module

    real = module.relocated

    def swapped(kernel, place, shape, steps):
        (step,) = steps
        return real(kernel, place, shape, [Step(step.own, step.seen, step.axis, 8 - step.offset)])

    monkeypatch.setattr(module, "relocated", swapped)
    net = nn.ModuleList([nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 3, padding=1)])

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return torch.cat([self.net[0](x).relu(), self.net[1](x)], 1)

    with pytest.raises(tvmfuse.errors.VerificationError, match="cat"):
        tvmfuse.compile(Two().eval(), torch.randn(1, 4, 6, 6), trials=0, no_log=True)


def test_parts_that_are_read_elsewhere_and_other_axes():
    """Everyone reads a part where it lies: a pool, a convolution, a kernel that writes beside."""
    torch.manual_seed(0)

    class Read(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(5, 11, 1), nn.Conv2d(11, 7, 3, padding=1)
            self.last = nn.Conv2d(36, 3, 1)

        def forward(self, x):
            one = self.a(x).relu()
            two = nn.functional.max_pool2d(one, 3, 1, 1)
            three = self.b(one).sigmoid()
            rows = torch.cat([three, three.neg()], 2)[:, :, ::2]
            whole = torch.cat([one, two, three], 1)
            return self.last(torch.cat([whole, rows], 1)), whole.mean(1)

    module, x = Read().eval(), torch.randn(2, 5, 6, 9)
    model = tvmfuse.compile(module, x, trials=0, no_log=True)
    names = [kernel for kernel, _ in model._model.manifest.layers]
    assert sum("_from_" in name for name in names) >= 2, names
    with torch.no_grad():
        for given in (x, x.flip(3)):
            for got, want in zip(model(given), module(given), strict=True):
                torch.testing.assert_close(torch.as_tensor(got), want, rtol=1e-5, atol=1e-5)


def test_one_whose_last_kernel_reads_the_part_itself_is_left_alone():
    """The kernel that would write over the part reads it as its residual."""
    module, x = Stage(1, True).eval(), torch.randn(1, 12, 9, 7)
    model = tvmfuse.compile(module, x, trials=0, no_log=True)
    assert model.report["fusion"]["horizontal"] == 0
    assert model.report["kernels"]["after"] == 8  # both branches have a kernel of their own
    with torch.no_grad():
        for got, want in zip(model(x), module(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
