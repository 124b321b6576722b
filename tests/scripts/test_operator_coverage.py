"""The operator sweep: a fixed sample of it, and that it tells right from refused and wrong."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import coverage_child
import operator_coverage
from coverage_child import REFUSED, RIGHT, WRONG, attempt, find, judge, samples_of

# Operator and type with the outcome that all its samples have.
SAMPLE = {
    ("add", "int64"): RIGHT,
    ("nn.functional.gelu", "float32"): RIGHT,
    ("softmax", "float32"): RIGHT,
    ("gather", "int64"): RIGHT,
    ("index_add", "bool"): RIGHT,
    ("var_mean", "float32"): RIGHT,
    ("nn.functional.max_pool2d", "float32"): RIGHT,
    ("searchsorted", "float32"): RIGHT,
    ("floor_divide", "int64"): RIGHT,
    ("topk", "int64"): REFUSED,  # places of equal integers
    ("erfinv", "float32"): REFUSED,  # no converter
}


@pytest.mark.parametrize(("name", "dtype"), SAMPLE)
def test_sample(name, dtype):
    result = judge(find(name), getattr(torch, dtype), 3)
    assert set(result["outcomes"]) == {SAMPLE[name, dtype]}, result["messages"]
    if SAMPLE[name, dtype] == REFUSED:
        assert f"aten.{name}" in result["messages"][REFUSED]


def test_a_wrong_result_is_seen(monkeypatch):
    real = coverage_child.load

    def load(*args, **kwargs):
        model = real(*args, **kwargs)
        return lambda *tensors: tuple(t + 1 for t in model(*tensors))

    monkeypatch.setattr(coverage_child, "load", load)
    assert attempt(samples_of(find("add"), torch.float32, 1))[0] == WRONG


def test_an_unexpected_error_is_a_crash(monkeypatch):
    def broken(*args):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(coverage_child, "make_plan", broken)
    word, message = attempt(samples_of(find("add"), torch.float32, 1))
    assert (word, message) == ("crashed", "RuntimeError: no such luck")


def test_a_child_that_dies_is_a_crash_and_the_next_one_goes_on(tmp_path):
    child = tmp_path / "child.py"
    child.write_text(
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    if asked['operator'] == 'deadly': os._exit(7)\n"
        "    answer = {**asked, 'samples': 1, 'outcomes': {'right': 1}, 'messages': {}}\n"
        "    print(json.dumps(answer), flush=True)\n"
    )
    asked = [{"operator": name, "dtype": "float32", "samples": 1} for name in ("a", "deadly", "b")]
    results = list(operator_coverage.sweep(asked, 30.0, child))
    assert [operator_coverage.verdict(r) for r in results] == ["right", "crashed", "right"]
    assert "ended with 7" in results[1]["messages"]["crashed"]
    assert operator_coverage.summary(results).startswith("3 operators and types: 2 right (66.7%)")


def test_the_worst_outcome_names_the_operator():
    outcomes = {"right": 5, "refused": 1}
    assert operator_coverage.verdict({"outcomes": outcomes}) == "refused"
    assert operator_coverage.verdict({"outcomes": outcomes | {"wrong": 1}}) == "wrong"
    assert operator_coverage.verdict({"outcomes": {}}) == "skipped"


def test_page():
    result = {"operator": "a|b", "dtype": "bool", "outcomes": {"refused": 1},
              "messages": {"refused": "one\ntwo"}}  # fmt: skip
    text = operator_coverage.page([result], SimpleNamespace(dtypes="bool", samples=6))
    assert "| a|b | bool | refused | 1 refused | one two |" in text


def test_what_is_left_out_has_a_reason():
    assert operator_coverage.excluded("linalg.svd") == "decompositions of linear algebra"
    assert operator_coverage.excluded("nn.functional.conv2d") == ""
