"""Verification of models whose products take halves: the half's tolerance, and no more."""

import dataclasses

import pytest
import torch
from torch import nn

from tvmfuse.frontend.import_model import import_module
from tvmfuse.signature import OWN_TYPES
from tvmfuse.verify.compare import compare
from tvmfuse.verify.reference import in_halves, leaves_range, other_orders
from tvmfuse.verify.tolerances import TOLERANCES, tolerance


def workload(computes="float16"):
    found = import_module(nn.Linear(16, 4).eval(), (torch.randn(3, 16),), "net")
    signature = dataclasses.replace(found.signature, computes=computes)
    return dataclasses.replace(found, signature=signature)


@pytest.mark.parametrize("level", ["layer", "model", "kernel"])
def test_tolerance_is_the_half_s_only_where_halves_are_taken(level):
    for half in ("float16", "bfloat16"):
        assert tolerance(level, torch.float32, half) == TOLERANCES[level][half]
    assert tolerance(level, torch.float32) == TOLERANCES[level]["float32"]
    assert tolerance(level, torch.bfloat16, "float16") == TOLERANCES[level]["bfloat16"]


@pytest.mark.parametrize(("computes", "passes"), [("float16", 0.01), ("bfloat16", 0.05)])
def test_an_error_of_rounding_passes_and_a_larger_one_does_not(computes, passes):
    want = torch.linspace(-1, 1, 101)
    assert compare([want + passes], [want], [want.double()], computes=computes).passed
    assert not compare([want + 5 * passes], [want], [want.double()], computes=computes).passed
    assert not compare([want + passes], [want], [want.double()]).passed


def test_the_reference_in_halves_is_autocast():
    work = workload()
    halves = in_halves(work, work.example_inputs)
    with torch.no_grad():
        wide = work.reference(*work.example_inputs)
    assert halves[0].dtype == torch.float32
    assert 0 < float((halves[0] - wide).abs().max()) < 1e-2
    assert in_halves(workload(OWN_TYPES), work.example_inputs) is None
    assert len(other_orders(work, work.example_inputs)) == 3


def test_what_leaves_the_range_is_noted():
    work = workload()
    plain = [torch.zeros(3, 4)]
    small, large = (torch.full((3, 16), v) for v in (1.0, 8e4))
    assert not leaves_range(work, (small,), plain) and leaves_range(work, (large,), plain)
    assert not leaves_range(workload("bfloat16"), (large,), plain)
    assert not leaves_range(workload(OWN_TYPES), (large,), plain)
