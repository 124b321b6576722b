"""The feasibility matrix: verdicts with reasons, and that the planner obeys them."""

import dataclasses

import pytest
import torch
from torch import nn

from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.feasibility import GREY, OK, REFUSED, Work, assess, work_of
from tvmfuse.fusion.grow import Grower
from tvmfuse.fusion.kernels import KernelGraph
from tvmfuse.fusion.planner import make_plan
from tvmfuse.fusion.rules.vertical import VERTICAL
from tvmfuse.hardware import resolve_target
from tvmfuse.hardware.limits import gpu_limits, limits_of
from tvmfuse.passes.pipeline import lower

HARDWARE = resolve_target("llvm:haswell", 2)
LIMITS = limits_of(HARDWARE)


def work(**change):
    facts = {"dtype": "float32", "parts": 3, "flops": 1e6, "read_bytes": 1000,
             "write_bytes": 1000, "middle_bytes": 2000, "parts_s": 1e-3, "alive": 2}  # fmt: skip
    return Work(**(facts | change))


@pytest.mark.parametrize(
    ("change", "verdict", "reason"),
    [
        ({}, OK, ""),
        ({"parts": 1, "parts_s": 1e-5}, OK, ""),
        ({"alive": 40}, REFUSED, "40 values alive at once, 16 registers"),
        ({"recomputed": 1e9}, REFUSED, "the estimate is slower"),
        ({"parts_s": 8.26e-6}, GREY, "within the margin"),
        ({"alive": 8, "product": True}, GREY, "about 20 registers of 16: it may spill"),
        ({"dtype": "bfloat16", "product": True}, GREY, "no bfloat16 instruction"),
    ],
)
def test_verdicts(change, verdict, reason):
    found = assess(work(**change), LIMITS)
    assert found.verdict == verdict, found
    assert reason in found.reason


def test_intermediates_go_through_the_cache_or_through_memory():
    small, large = (
        assess(work(middle_bytes=m), LIMITS).handed_over
        for m in (LIMITS.cache_bytes // 2, LIMITS.cache_bytes)
    )
    assert (small, large) == ("cache", "memory")
    assert assess(work(middle_bytes=0), LIMITS).handed_over == "nothing"
    assert assess(work(middle_bytes=LIMITS.cache_bytes), gpu_limits("a100")).handed_over == "cache"


def test_the_ridge_tells_compute_from_memory():
    ridge = LIMITS.ridge("float32")
    assert assess(work(flops=1.01 * ridge * 2000), LIMITS).bound == "compute"
    assert assess(work(flops=0.99 * ridge * 2000), LIMITS).bound == "memory"


def test_numbers_of_a_convolution_with_its_epilogue():
    module = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()).eval()
    low = lower(import_module(module, (torch.randn(1, 8, 6, 6),)), HARDWARE)
    graph = KernelGraph(low.module)
    (row,) = [r for r in make_plan(low, HARDWARE).matrix if "conv2d" in r.ops]
    out, weights = 16 * 36, 16 * 8 * 9
    assert row.work.flops == 2 * out * 8 * 9 + out + out
    assert row.work.middle_bytes == 2 * out * 4
    assert row.work.read_bytes == (8 * 36 + weights + 16) * 4
    assert row.work.write_bytes == out * 4
    assert row.to_json()["flops_per_byte"] == pytest.approx(row.work.intensity, abs=1e-3)
    group = next(g for g in make_plan(low, HARDWARE).groups if g.members[-1] == row.member)
    assert work_of(graph, group.members, LIMITS).flops == row.work.flops


def grown(function, *inputs, limits=LIMITS):
    class Module(nn.Module):
        def forward(self, *given):
            return function(*given)

    low = lower(import_module(Module().eval(), inputs), HARDWARE)
    grower = Grower(KernelGraph(low.module), VERTICAL, limits)
    return grower.grow(), grower


def test_the_planner_refuses_what_would_spill():
    """Many values that all live until they are added up, on a machine with few registers."""

    def wide(x, *others):
        parts = [torch.relu(x) * o for o in others]
        while len(parts) > 1:
            parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    inputs = [torch.randn(4, 64) for _ in range(9)]
    whole, _ = grown(wide, *inputs)
    assert len(whole) == 1
    few = dataclasses.replace(LIMITS, registers=2)
    cut, grower = grown(wide, *inputs, limits=few)
    assert len(cut) > 1
    assert any("values alive at once, 2 registers" in s.verdict.reason for s in grower.stopped)


def test_the_planner_refuses_what_is_computed_too_often():
    """A row that a broadcast would compute again for each of many rows."""

    def broadcast(x, y):
        return x * (y + y * y - 3.0)

    inputs = torch.randn(4096, 256), torch.randn(1, 256)
    together, _ = grown(broadcast, *inputs)
    assert len(together) == 1
    slow = dataclasses.replace(LIMITS, peak_flops={"float32": 1e8})
    apart, grower = grown(broadcast, *inputs, limits=slow)
    assert len(apart) == 2
    assert any("the estimate is slower" in s.verdict.reason for s in grower.stopped)
