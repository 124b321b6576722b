"""Every vertical rule fires, and refuses with a reason when it is switched off or broken."""

import functools
import re

import pytest
import torch
from torch import nn

from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.planner import make_plan
from tvmfuse.fusion.rules.vertical import (
    ANCHORS,
    ANY,
    EPILOGUE,
    PROLOGUE,
    VERTICAL,
    VerticalRule,
)
from tvmfuse.fusion.step import BROADCAST, INJECTIVE, OPAQUE, Step
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import lower

HARDWARE = resolve_target("llvm", 1)
# Slices of convolutions come from merged siblings: a module of its own below. Layout changes of
# images: tests/passes/test_image_moves.py.
OF_SIBLINGS = {"conv2d": 1, "depthwise": 8}  # anchor -> groups of the convolutions that read
NAMED = [
    rule
    for rule in VERTICAL
    if rule.op != "*"
    and not rule.changes_layout
    and not (rule.op == "slice" and rule.anchor in OF_SIBLINGS)
]


@functools.cache
def lowered(module_of, anchor, side):
    """One chain for each rule of an anchor and a side, lowered together."""
    ops = tuple(r.op for r in NAMED if (r.anchor, r.side) == (anchor, side))
    words = {"epilogues": ops} if side == EPILOGUE else {"prologues": ops}
    return lower(module_of(anchor, **words), HARDWARE)


@functools.cache
def plan(module_of, anchor, side, off=False):
    """The plan with all rules, or without those of this anchor and side."""
    gone = [r for r in VERTICAL if off and (r.anchor, r.side) == (anchor, side)]
    return make_plan(
        lowered(module_of, anchor, side), HARDWARE, [r for r in VERTICAL if r not in gone], gone
    )


def fired(found):
    return {name for group in found.groups for name in group.steps}


@pytest.mark.parametrize("rule", NAMED, ids=lambda r: r.name)
def test_it_fires(rule, module_of):
    assert rule.name in fired(plan(module_of, rule.anchor, rule.side))


@pytest.mark.parametrize("rule", NAMED, ids=lambda r: r.name)
def test_switched_off_it_refuses_and_says_so(rule, module_of):
    found = plan(module_of, rule.anchor, rule.side, off=True)
    assert rule.name not in fired(found)
    assert "the rule is switched off" in {r.reason for r in found.refused if r.rule == rule.name}


@pytest.mark.parametrize("anchor", ANCHORS)
def test_any_other_element_wise_operator_joins_by_the_last_rule(anchor):
    (rule,) = [r for r in VERTICAL if r.anchor == anchor and r.op == "*"]
    assert rule.check(step()) and rule.seen_in == ANY


def step(**change):
    facts = {"name": "v1", "op": "foo", "kind": BROADCAST, "dtype": "float32", "rank": 4,
             "elements": 64, "before": 64, "costly": False}  # fmt: skip
    return Step(**(facts | change))


def test_there_is_a_model_for_every_rule():
    assert all(rule.seen_in for rule in VERTICAL)
    assert len({rule.name for rule in VERTICAL}) == len(VERTICAL)
    assert len({rule.key for rule in VERTICAL}) == len(VERTICAL)


@pytest.mark.parametrize(
    ("rule", "facts", "reason"),
    [
        (VerticalRule("conv2d", "foo"), {"kind": INJECTIVE}, "foo is not element-wise"),
        (VerticalRule("conv2d", "foo"), {"kind": OPAQUE}, "foo is opaque"),
        (VerticalRule("elementwise", "foo"), {"kind": OPAQUE}, "foo is opaque"),
        (VerticalRule("conv2d", "foo"), {"elements": 128, "costly": True},
         "foo would compute 64 values for each of 128"),
        (VerticalRule("conv2d", "foo", dtypes=("float16", "bfloat16")), {},
         "foo is float32, not float16 or bfloat16"),
        (VerticalRule("conv2d", "foo", ranks=(1, 3)), {}, "foo has rank 4, not 1 to 3"),
    ],
)  # fmt: skip
def test_what_breaks_a_constraint_is_refused(rule, facts, reason):
    verdict = rule.check(step(**facts))
    assert (verdict.ok, verdict.reason, verdict.culprit) == (False, reason, "v1")


def test_moves_join_what_only_moves():
    assert VerticalRule("elementwise", "foo").check(step(kind=INJECTIVE))
    assert VerticalRule("conv2d", "foo", PROLOGUE).check(step(kind=INJECTIVE))
    assert not VerticalRule("softmax", "foo", PROLOGUE).check(step(kind=INJECTIVE))


def test_names_are_equations():
    assert VerticalRule("dense", "slice", PROLOGUE).name == "dense(slice(x), w)"
    assert all(re.fullmatch(r"[\w, ()]+", rule.name) for rule in VERTICAL)


class Branches(nn.Module):
    """1x1 convolutions on one input, which become one, and 3x3 ones that read its parts."""

    def __init__(self, groups):
        super().__init__()
        self.narrow = nn.ModuleList([nn.Conv2d(8, 8, 1) for _ in range(2)])
        self.wide = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1, groups=groups) for _ in range(2)])

    def forward(self, x):
        return [w(n(x)) for w, n in zip(self.wide, self.narrow, strict=True)]


@pytest.mark.parametrize("anchor", OF_SIBLINGS)
def test_slices_of_merged_siblings_join_the_convolution_that_reads_them(anchor):
    module = Branches(OF_SIBLINGS[anchor]).eval()
    low = lower(import_module(module, (torch.randn(1, 8, 6, 6),)), HARDWARE)
    (rule,) = [r for r in VERTICAL if r.key == (anchor, "slice", PROLOGUE)]
    assert rule.name in fired(make_plan(low, HARDWARE))
    found = make_plan(low, HARDWARE, [r for r in VERTICAL if r != rule], [rule])
    assert rule.name not in fired(found)
    assert {r.reason for r in found.refused if r.rule == rule.name} == {"the rule is switched off"}
