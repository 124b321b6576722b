"""Kernels that write parts of one tensor become one: both bodies, each operand once."""

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import te

import tvmfuse
from tvmfuse.passes.join_parts import join_parts, one_behind_the_other
from tvmfuse.passes.relocate import READS, Step, reading, relocated

WHOLE = (3, 20)


def kernel(width, offset, factor, operands=1):
    """The sum of its operands times a factor, into columns of a larger tensor."""
    xs = [te.placeholder((3, width), name=f"x{n}") for n in range(operands)]
    y = te.compute((3, width), lambda *i: sum((x(*i) for x in xs[1:]), xs[0](*i)) * factor, "y")
    made = te.create_prim_func([*xs, y])
    shape = (3, width)
    return relocated(made, operands, WHOLE, [Step(shape, shape, 1, offset)])


def run(both, *tensors):
    machine = tvm.compile(both.with_attr("global_symbol", "main"), target="llvm")["main"]
    given = [tvm.runtime.tensor(t) for t in tensors]
    machine(*given)
    return given[-1].numpy()


def test_both_bodies_run():
    both = one_behind_the_other(kernel(7, 1, 2), kernel(5, 9, 3), (1,), 2)
    rng = np.random.default_rng(0)
    x, y, want = rng.random((3, 7), "float32"), rng.random((3, 5), "float32"), np.zeros(WHOLE, "f")
    got = run(both, x, y, want.copy())
    want[:, 1:8], want[:, 9:14] = x * 2, y * 3
    np.testing.assert_array_equal(got, want)


def test_an_operand_of_both_is_one_parameter():
    both = one_behind_the_other(kernel(6, 0, 2), kernel(6, 6, 3, 2), (1, 0), 2)
    assert len(both.params) == 3
    rng = np.random.default_rng(0)
    x, y, want = rng.random((3, 6), "float32"), rng.random((3, 6), "float32"), np.zeros(WHOLE, "f")
    got = run(both, x, y, want.copy())
    want[:, :6], want[:, 6:12] = x * 2, (x + y) * 3
    np.testing.assert_array_equal(got, want)


def test_what_is_read_is_known_of_both():
    one, other = reading(kernel(6, 0, 2), 0, 4), kernel(6, 6, 3, 2)
    assert READS not in (one_behind_the_other(other, kernel(6, 0, 2), (0,), 2).attrs or {})
    both = one_behind_the_other(one, reading(other, 1, 5), (1, 2), 3)
    assert list(both.attrs[READS]) == [4, -1, 5, -1]
    # The second reads all of what the first reads a part of.
    both = one_behind_the_other(one, reading(other, 1, 5), (0, 1), 2)
    assert list(both.attrs[READS]) == [-1, 5, -1]


def test_without_runs_nothing_changes():
    mod = tvm.IRModule({"main": kernel(6, 0, 2)})
    assert join_parts(mod, ()) is mod


class Head(nn.Module):
    """Boxes, sizes and scores of odd widths, from one convolution or from two."""

    def __init__(self, widths, levels):
        super().__init__()
        self.widths = widths
        self.convs = nn.ModuleList(nn.Conv2d(5, 2 * sum(widths), 1) for _ in range(levels))
        self.register_buffer("grid", torch.randn(7, 9, widths[0]))

    def forward(self, x):
        found = []
        for conv in self.convs:
            y = conv(x).view(x.shape[0], 2, sum(self.widths), 7, 9).permute(0, 1, 3, 4, 2)
            first, second, third = y.sigmoid().split(self.widths, 4)
            z = torch.cat([first * 2 + self.grid, (second * 3) ** 2, third], 4)
            found.append(z.reshape(x.shape[0], -1, sum(self.widths)))
        return torch.cat(found, 1)


@pytest.mark.parametrize(
    ("widths", "levels", "batch"), [((2, 2, 3), 1, 1), ((2, 2, 7), 2, 1), ((1, 3, 1), 2, 2)]
)
def test_numbers_and_kernels(widths, levels, batch):
    torch.manual_seed(0)
    module, x = Head(widths, levels).eval(), torch.randn(batch, 5, 7, 9)
    model = tvmfuse.compile(module, x, trials=0, no_log=True)
    assert model.report["verify"]["passed"]
    names = [name for name, _ in model._model.manifest.layers]
    assert sum(name.endswith("_and") or "_and_" in name for name in names) >= 1, names
    assert (
        len(names) == model.report["kernels"]["after"] == model.report["intermediates"]["kernels"]
    )
    with torch.no_grad():
        for given in (x, x.flip(3)):
            want = module(given)
            torch.testing.assert_close(torch.as_tensor(model(given)), want, rtol=1e-5, atol=1e-5)


class Twins(nn.Module):
    """Two parts that one kernel computes, each from an input of its own."""

    def forward(self, x, y):
        return torch.cat([x.sin() * 2, y.sin() * 2], 1)


def test_parts_by_the_same_kernel_have_operands_of_their_own():
    given = torch.randn(3, 5, 11), torch.randn(3, 5, 11)
    model = tvmfuse.compile(Twins().eval(), given, trials=0, no_log=True)
    assert model.report["kernels"]["after"] == 1
    torch.testing.assert_close(torch.as_tensor(model(*given)), Twins()(*given))


class Earlier(nn.Module):
    """The second kernel of a run reads a part that was written in front of the run."""

    def forward(self, x):
        first = x[:, :2].sin()
        top = first.softmax(-1)
        second = x[:, 2:4].cos()
        third = torch.relu(first)
        return torch.cat([third, first, second], 0), top, third.exp()


def test_a_run_reads_earlier_parts_where_they_lie():
    module, x = Earlier().eval(), torch.randn(2, 4, 6)
    model = tvmfuse.compile(module, x, trials=0, no_log=True)
    assert any("_and" in name for name, _ in model._model.manifest.layers)
    for got, want in zip(model(x), module(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
