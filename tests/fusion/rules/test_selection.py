"""Rules are switched on and off by name and category; users bring their own."""

import pytest
import torch
from torch import nn

from tvmfuse.errors import OptionError, UnknownNameError
from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.planner import make_plan
from tvmfuse.fusion.rules import RULES
from tvmfuse.fusion.rules.selection import select_rules
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.pipeline import fuse, lower, lowering
from tvmfuse.passes.specialize import group_kernels

HARDWARE = resolve_target("llvm", 1)
RELU = "relu(conv2d(x, w))"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x, y):
        return torch.relu(self.conv(x)), torch.softmax(torch.relu(y), -1)


def planned(rules):
    inputs = torch.randn(1, 8, 6, 6), torch.randn(4, 16)
    low, _ = lowering(import_module(Block().eval(), inputs), HARDWARE, rules.merging)
    return make_plan(low, HARDWARE, rules.vertical, rules.off)


def ops(plan):
    return [g.ops for g in plan.groups]


def test_all_rules_by_default_in_order():
    rules = select_rules()
    assert rules.off == () and rules.vertical == RULES["vertical"]
    assert rules.merging == (*RULES["compound"], *RULES["horizontal"])
    assert rules.diagonal == RULES["diagonal"]


def test_a_rule_that_is_switched_off_changes_the_plan():
    assert ("conv2d", "add", "relu") in ops(planned(select_rules()))
    plan = planned(select_rules(no_rule=[RELU]))
    assert ("conv2d", "add") in ops(plan)
    assert (RELU, "the rule is switched off") in {(r.rule, r.reason) for r in plan.refused}


def test_without_the_vertical_category_every_operator_is_a_kernel():
    plan = planned(select_rules(no_rule=["vertical"]))
    assert all(len(group) == 1 for group in ops(plan))


def test_only_one_rule():
    plan = planned(select_rules(only=["bias(conv2d(x, w))"]))
    assert [group for group in ops(plan) if len(group) > 1] == [("conv2d", "add")]


def test_only_one_category():
    rules = select_rules(only=["compound"])
    assert rules.merging == RULES["compound"] and rules.vertical == ()


def test_an_unknown_rule_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"relu\(conv2d\(x, w\)\)"):
        select_rules(no_rule=["relu(conv2d(x w))"])
    with pytest.raises(UnknownNameError, match="vertical"):
        select_rules(only=["verticle"])


def written(tmp_path, text, name="rules.toml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_rule_of_the_user_fuses_what_the_library_does_not(tmp_path):
    text = '[[rule]]\nanchor = "softmax"\nop = "relu"\nside = "prologue"\n'
    rules = select_rules(file=written(tmp_path, text))
    assert ("relu", "softmax") not in ops(planned(select_rules()))
    assert ("relu", "softmax") in ops(planned(rules))
    assert "softmax(relu(x))" in rules.names


def test_a_rule_of_the_user_may_be_stricter_than_the_library(tmp_path):
    text = '[[rule]]\nanchor = "conv2d"\nop = "relu"\nranks = [1, 3]\n'
    plan = planned(select_rules(file=written(tmp_path, text)))
    assert ("conv2d", "add") in ops(plan)
    assert (RELU, "relu has rank 4, not 1 to 3") in {(r.rule, r.reason) for r in plan.refused}


FORCED = '[[rule]]\nanchor = "dense"\nop = "dense"\nanchors = true\n'


def test_products_in_a_row_need_a_rule_of_the_user(tmp_path):
    module = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(3)]).eval()
    low = lower(import_module(module, (torch.randn(4, 8),)), HARDWARE)
    rules = select_rules(file=written(tmp_path, FORCED))
    assert "may be an anchor itself" in rules.vertical[0].constraints
    apart = make_plan(low, HARDWARE)
    assert ops(apart) == [("dense",)] * 3
    forced = make_plan(low, HARDWARE, rules.vertical, rules.off)
    assert ops(forced) == [("dense",) * 3]
    (group,) = group_kernels(fuse(low, forced).module, HARDWARE)
    assert group.variants == () and group.weight == -1  # no weight is packed for one of them


PYTHON = """
from tvmfuse.fusion.rules.vertical import VerticalRule
RULES = [VerticalRule("softmax", "relu", "prologue")]
"""


def test_rules_in_python(tmp_path):
    rules = select_rules(file=written(tmp_path, PYTHON, "own.py"))
    assert rules.vertical[0].name == "softmax(relu(x))"


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("", "rules.toml", r"expected one or more \[\[rule\]\]"),
        ("x = ", "rules.toml", "not valid TOML"),
        ('[[rule]]\nop = "relu"', "rules.toml", "'anchor' is missing"),
        ('[[rule]]\nanchor = "conv2d"\nop = "relu"\ncolour = 1', "rules.toml", "unknown colour"),
        ('[[rule]]\nanchor = "conv2d"\nop = "relu"\nranks = [3]', "rules.toml", "least, most"),
        ('[[rule]]\nanchor = "conv2d"\nop = "relu"\ndtypes = "f"', "rules.toml", "list of names"),
        ('[[rule]]\nanchor = "dense"\nop = "dense"\nanchors = 1', "rules.toml", "true or false"),
        (
            '[[rule]]\nanchor = "dense"\nop = "dense"\nside = "prologue"\nanchors = true',
            "rules.toml",
            "anchors = true is for side = 'epilogue'",
        ),
        ("RULES = 1/0", "own.py", "ZeroDivisionError"),
        ("x = 1", "own.py", "must bind RULES"),
        ("RULES = [1]", "own.py", "1 has no name, category, root"),
        ("{}", "rules.json", "from .toml and .py files"),
    ],
)
def test_files_that_hold_no_rules(tmp_path, text, name, says):
    with pytest.raises(OptionError, match=says):
        select_rules(file=written(tmp_path, text, name))


def test_wrong_words_in_a_file_are_named_with_the_nearest(tmp_path):
    with pytest.raises(UnknownNameError, match=r"unknown anchor 'conv2'.*'conv2d'"):
        select_rules(file=written(tmp_path, '[[rule]]\nanchor = "conv2"\nop = "relu"'))
    with pytest.raises(OptionError, match="no such file"):
        select_rules(file=tmp_path / "missing.toml")
