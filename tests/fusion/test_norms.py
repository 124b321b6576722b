"""A norm joins the product whose rows it normalises, and says why where it does not."""

import numpy as np
import pytest
import torch
from torch import nn

import tvmfuse
from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.planner import make_plan
from tvmfuse.fusion.rules.selection import select_rules
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import lowering

ONE, TWO = (resolve_target("llvm", cores) for cores in (1, 2))
RULE = "layer_norm(dense(x, w))"
WIDTH = 32


class PostNorm(nn.Module):
    """What stands behind attention and behind the wide layer in BERT: twice ``norm(f(x) + x)``."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.wide, self.back = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.out = nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        x = self.first(self.out(x) + x)
        return self.second(self.back(torch.nn.functional.gelu(self.wide(x))) + x)


class PreNorm(PostNorm):
    """As in GPT-2 and ViT: the sum goes on beside the norm."""

    def forward(self, x):
        x = x + self.out(x)
        return x + self.back(self.wide(self.first(x)))


class Behind(nn.Module):
    """A layer and whatever the test puts behind it."""

    def __init__(self, behind, width=WIDTH, dtype=torch.float32):
        super().__init__()
        self.layer = nn.Linear(16, width, dtype=dtype)
        self.norm, self.behind = nn.LayerNorm(width, dtype=dtype), behind

    def forward(self, x):
        return self.behind(self, self.layer(x))


def plan_of(module, *inputs, hardware=TWO, compensated=False, no_rule=()):
    rules = select_rules(no_rule)
    low, _ = lowering(
        import_module(module.eval(), inputs), hardware, rules.merging, compensated=compensated
    )
    return make_plan(low, hardware, rules.vertical, rules.off, rules.diagonal)


def groups(plan):
    return [g.ops for g in plan.groups]


def reasons(plan):
    return [r.reason for r in plan.refused if r.rule == RULE]


X = torch.randn(1, 26, WIDTH)
SMALL = torch.randn(26, 16)


def test_it_fires_behind_bias_and_residual():
    plan = plan_of(PostNorm(), X)
    assert groups(plan) == [
        ("dense", "add", "add", "layer_norm"),
        ("dense", "add", "gelu"),
        ("dense", "add", "add", "layer_norm"),
    ]
    assert sum(RULE in g.steps for g in plan.groups) == 2


def test_it_computes_what_the_parts_compute_and_moves_less():
    module = PostNorm().eval()
    fused = tvmfuse.compile(module, (X,), threads=1)
    apart = tvmfuse.compile(module, (X,), threads=1, no_rule=(RULE,))
    kernels = [c.report["kernels"]["after"] for c in (fused, apart)]
    assert kernels == [3, 5]
    moved = [c.report["intermediates"]["written_bytes"] for c in (fused, apart)]
    assert moved[1] - moved[0] == 2 * 26 * WIDTH * 4  # neither sum is written
    got, other = (np.asarray(c(X)) for c in (fused, apart))
    want = module.double()(X.double()).detach().numpy()
    for result in (got, other):
        assert np.abs(result - want).max() <= 1e-5 * np.abs(want).max()


def test_what_is_element_wise_joins_behind_the_norm():
    plan = plan_of(Behind(lambda m, y: torch.relu(m.norm(torch.tanh(y)))), SMALL)
    assert groups(plan) == [("dense", "add", "tanh", "layer_norm", "relu")]


def test_a_slice_of_the_normed_rows_stays_apart():
    """As the class token of ViT: the kernel has one result, and it is all of the rows."""
    plan = plan_of(Behind(lambda m, y: m.norm(y)[:1]), SMALL)
    assert groups(plan) == [("dense", "add", "layer_norm"), ("slice",)]
    assert "slice has other rows than the norm" in {r.reason for r in plan.refused}


def test_switched_off_it_stays_apart_and_says_so():
    plan = plan_of(Behind(lambda m, y: m.norm(y)), SMALL, no_rule=(RULE,))
    assert groups(plan) == [("dense", "add"), ("layer_norm",)]
    assert reasons(plan) == ["the rule is switched off"]


def test_a_sum_that_is_read_later_stays_apart():
    plan = plan_of(PreNorm(), X)
    assert ("layer_norm",) in groups(plan)
    (reason,) = reasons(plan)
    assert "as well, and kernels have one result" in reason


def test_a_sum_that_the_model_returns_stays_apart():
    plan = plan_of(Behind(lambda m, y: (m.norm(y), y)), SMALL)
    assert sorted(groups(plan)) == [("dense", "add"), ("layer_norm",)]


def several_axes(m, y):
    return torch.nn.functional.layer_norm(y, y.shape[-2:])


@pytest.mark.parametrize(
    ("behind", "more", "reason"),
    [
        (several_axes, {}, "it is not two sums along the last axis"),
        (lambda m, y: m.norm(y), {"compensated": True}, "it is not two sums along the last axis"),
        (
            lambda m, y: m.norm(torch.relu(m.norm(y))),
            {},
            "its group is not one product with element-wise operators",
        ),
    ],
    ids=["axes", "compensated", "second"],
)
def test_other_norms_stay_apart(behind, more, reason):
    plan = plan_of(Behind(behind, 512), SMALL, **more)
    assert reasons(plan) == [reason]
    assert ("layer_norm",) in groups(plan)


def test_in_float64_norms_are_other_kernels():
    module = Behind(lambda m, y: m.norm(y), dtype=torch.float64)
    assert ("dense", "add") in groups(plan_of(module, SMALL.double()))


def test_few_rows_on_several_cores_stay_apart():
    """Seven rows are one strip: the product alone would give both cores half of the columns."""
    module, x = Behind(lambda m, y: m.norm(y), 768), torch.randn(7, 16)
    assert groups(plan_of(module, x, hardware=ONE)) == [("dense", "add", "layer_norm")]
    plan = plan_of(module, x)
    assert groups(plan) == [("dense", "add"), ("layer_norm",)]
    (reason,) = reasons(plan)
    assert reason.startswith("whole rows would slow the product by ")
    assert reason.endswith(" rows on 2 cores)")
