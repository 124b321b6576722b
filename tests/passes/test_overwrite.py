"""Results in the memory of operands: numbers of eager, and every way in which it must not be."""

import dataclasses

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import te, tirx

import tvmfuse
from tvmfuse.build import build
from tvmfuse.choose import choose_kernels
from tvmfuse.errors import BuildError
from tvmfuse.fusion.group import Overwritten
from tvmfuse.fusion.planner import make_plan
from tvmfuse.fusion.rules.overwrite import OVERWRITE
from tvmfuse.passes.overwrite import overwrite, written_over
from tvmfuse.passes.pipeline import fuse, lower
from tvmfuse.passes.specialize import group_kernels
from tvmfuse.schedules import default_schedule


def scheduled(function, hardware, *shapes):
    """A kernel of ``function`` over placeholders, as the templates schedule it."""
    inputs = [te.placeholder(s, name=f"x{i}") for i, s in enumerate(shapes)]
    func = te.create_prim_func([*inputs, function(*inputs)])
    return default_schedule(func.with_attr("global_symbol", "main"), hardware).mod["main"]


def added(x, y):
    return te.compute(x.shape, lambda *i: x(*i) + 2 * y(*i), "z")


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5, 17), (2, 64, 96)])
@pytest.mark.parametrize("place", [0, 1])
def test_a_kernel_writes_over_its_operand(kit, shape, place):
    kernel = written_over(scheduled(added, kit.HARDWARE, shape, shape), place)
    assert kernel is not None and len(kernel.params) == 2
    run = tvm.compile(kernel.with_attr("global_symbol", "main"), target=kit.TARGET)["main"]
    x, y = np.random.default_rng(0).random((2, *shape), "float32")
    over = tvm.runtime.tensor((x, y)[place])
    run(tvm.runtime.tensor((y, x)[place]), over)
    np.testing.assert_allclose(over.numpy(), x + 2 * y, rtol=1e-6)


N = 12
REFUSED = {
    "reads another element": lambda x, y: te.compute((N, N), lambda i, j: x[j, i] + y[i, j], "z"),
    "reads it twice": lambda x, y: te.compute(
        (N, N), lambda i, j: x[i, j] + x[(i + 1) % N, j] + y[i, j], "z"
    ),
    "another shape": lambda x, y: te.compute((N, 2 * N), lambda i, j: x[i, j % N] + y[i, j % N]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_that_reads_elsewhere_keeps_its_result(kit, name):
    assert written_over(scheduled(REFUSED[name], kit.HARDWARE, (N, N), (N, N)), 0) is None


def test_a_sum_over_what_it_would_overwrite_keeps_its_result(kit):
    def summed(x, y):
        k = te.reduce_axis((0, N), "k")
        s = te.compute((N,), lambda i: te.sum(x[i, k], axis=k), "s")
        return te.compute((N, N), lambda i, j: x[i, j] - s[i] + y[i, j], "z")

    kernel = scheduled(summed, kit.HARDWARE, (N, N), (N, N))
    assert written_over(kernel, 0) is None
    assert written_over(kernel, 1) is not None


def test_an_element_that_is_written_twice_keeps_its_result(kit):
    old = scheduled(added, kit.HARDWARE, (N,), (N,))
    again = tirx.For(tirx.Var("again", "int64"), 0, 2, tirx.ForKind.SERIAL, old.body)
    assert written_over(tirx.PrimFunc(old.params, again, old.ret_type), 0) is None


class Residual(nn.Module):
    """Two blocks; the shortcut of the second is what the first gave."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(6))

    def forward(self, x):
        a, b, c, d, e, f = self.convs
        x = torch.relu(a(x))
        x = torch.relu(c(torch.relu(b(x))) + x)
        return f(torch.relu(e(torch.relu(d(x))) + x))


def built(kit, module, *inputs, **rules):
    low = lower(kit.workload(module, *inputs), kit.HARDWARE)
    fused = fuse(low, make_plan(low, kit.HARDWARE, **rules))
    groups = group_kernels(fused.module, kit.HARDWARE)
    return build(fused, groups, choose_kernels(groups, None, kit.HARDWARE), kit.HARDWARE)


X = torch.randn(1, 16, 9, 9)


def test_shortcuts_are_written_over_and_the_memory_is_less(kit):
    """Two tensors instead of three: what a block reads, and what its first convolution gives."""
    with_it = built(kit, Residual(), X)
    without = built(kit, Residual(), X, diagonal=())
    assert len(with_it.workload.overwritten) == 2
    tensor = 16 * 9 * 9 * 4
    assert without.footprint.memory_bytes - with_it.footprint.memory_bytes >= tensor
    assert with_it.footprint.kernels == without.footprint.kernels
    assert with_it.footprint.moved_bytes == without.footprint.moved_bytes


@pytest.mark.slow
def test_numbers_of_eager_twice(tmp_path):
    """Twice: nothing that is needed again, such as a weight, has been written over."""
    module = Residual().eval()
    model = tvmfuse.compile(module, (X,), trials=0, threads=2, log_dir=tmp_path)
    assert model.report["fusion"]["diagonal"] == 2
    for x in (X, X.flip(2), X):
        torch.testing.assert_close(torch.from_dlpack(model(x)), module(x), rtol=1e-4, atol=1e-5)


class Read(nn.Module):
    def __init__(self, function, layer):
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, x):
        return self.function(self.layer, x)


def conv():
    return nn.Conv2d(16, 16, 3, padding=1)


def read_later(f, x):
    y = torch.relu(f(x))
    return f(f(torch.sigmoid(f(y))) + y) * f(torch.tanh(y))


def returned(f, x):
    y = torch.relu(f(x))
    return y, f(f(y)) + y


def read_whole(f, x):
    y = torch.relu(f(x))
    return f(f(y) + y)


def normed(f, x):
    y = torch.relu(f(x[..., :8]))
    return nn.functional.layer_norm(f(f(y)) + y, (8,))


REASONS = {
    "later": (read_later, conv, "it is read later as well"),
    "input": (lambda f, x: f(f(x)) + x, lambda: nn.Linear(9, 9), "an input, a constant or a view"),
    "result": (returned, lambda: nn.Linear(9, 9), "a result of the model"),
    "normed": (normed, lambda: nn.Linear(8, 8), "layer_norm stands between it and the result"),
    "read whole": (read_whole, conv, "conv2d reads it elsewhere than it writes"),
}


@pytest.mark.parametrize("name", REASONS)
def test_the_rule_refuses_with_the_reason(kit, name):
    function, layer, reason = REASONS[name]
    low = lower(kit.workload(Read(function, layer()), X), kit.HARDWARE)
    plan = make_plan(low, kit.HARDWARE)
    assert any(r.rule == OVERWRITE and reason in r.reason for r in plan.refused)


def test_switched_off_it_does_not_fire(kit):
    low = lower(kit.workload(Residual(), X), kit.HARDWARE)
    assert make_plan(low, kit.HARDWARE).overwritten
    assert make_plan(low, kit.HARDWARE, diagonal=()).overwritten == ()


def test_without_pairs_nothing_changes(kit):
    mod = tvm.IRModule({"main": scheduled(added, kit.HARDWARE, (N,), (N,))})
    assert overwrite(mod, ()) is mod


def test_a_plan_that_overwrites_what_is_read_later_is_refused(kit):
    """A fault of the planner ends the build."""
    low = lower(kit.workload(Read(read_later, conv()), X), kit.HARDWARE)
    plan = make_plan(low, kit.HARDWARE)
    adding = next(g for g in plan.groups if "conv2d" in g.ops and g.ops.count("add") == 2)
    first = next(g for g in plan.groups if "conv2d" in g.ops and g.ops[-2:] == ("add", "relu"))
    wrong = dataclasses.replace(
        plan, overwritten=(Overwritten(adding.members[-1], first.members[-1]),)
    )
    fused = fuse(low, wrong)
    groups = group_kernels(fused.module, kit.HARDWARE)
    with pytest.raises(BuildError, match="which overwrites it"):
        build(fused, groups, choose_kernels(groups, None, kit.HARDWARE), kit.HARDWARE)
