"""The attention rule: every form in which attention comes from PyTorch, and what it refuses."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from tvm import relax

from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.attention_call import AttentionCall, Recipe, ScoreStep, make_call, read_call
from tvmfuse.fusion.merging import find_merges
from tvmfuse.fusion.rules.compound import COMPOUND, form_of
from tvmfuse.graph import Graph
from tvmfuse.hardware import resolve_target
from tvmfuse.passes import pipeline

HARDWARE = resolve_target("llvm", 2)
NAME = COMPOUND[0].name
LOWEST = torch.finfo(torch.float32).min
Q, K, V = (torch.randn(2, 4, s, 8) for s in (9, 12, 12))
SELF = tuple(torch.randn(2, 4, 9, 8) for _ in range(3))
TRIL = torch.ones(1, 1, 16, 16).tril().bool()


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def merges(function, *inputs):
    """Merges of the normalised graph by the compound rules alone."""
    workload = import_module(Lambda(function).eval(), inputs)
    return pipeline.lowering(workload, HARDWARE, COMPOUND)[1]


def steps(function, *inputs):
    """Kinds of the steps on the scores of the one attention found, and whether it is safe."""
    found = merges(function, *inputs)
    (merge,) = found.chosen
    recipe = merge.match.bound["call"].recipe
    assert merge.rule.form in (form_of(recipe), None)
    return [s.kind for s in recipe.steps], recipe.safe


def by_hand(mask=lambda s: s):
    return lambda q, k, v, *m: mask(q @ k.transpose(-1, -2) / math.sqrt(8), *m).softmax(-1) @ v


def guarded(q, k, v, m):
    """PyTorch's guard as its core decomposition says it."""
    scores = q @ k.mT + m
    weights = scores.softmax(-1)
    some = torch.logical_not(scores == -math.inf).any(-1, keepdim=True)
    return torch.where(torch.logical_not(some), torch.full_like(weights, 0), weights) @ v


FLOATS, BOOLS = torch.randn(9, 12), torch.rand(2, 1, 1, 12) > 0.5
FORMS = {
    "sdpa": (F.scaled_dot_product_attention, (Q, K, V), [], False),
    "sdpa with a float mask": (F.scaled_dot_product_attention, (Q, K, V, FLOATS), ["add"], True),
    "sdpa with a bool mask": (F.scaled_dot_product_attention, (Q, K, V, BOOLS), ["where"], True),
    "sdpa in core operators": (guarded, (Q, K, V, FLOATS), ["add"], True),
    "sdpa causal": (
        lambda *a: F.scaled_dot_product_attention(*a, is_causal=True), SELF, ["causal"], False
    ),
    "sdpa of groups": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
        (Q, K, V), [], False,
    ),
    "by hand": (by_hand(), (Q, K, V), ["scale"], False),
    "BERT": (by_hand(lambda s, m: s + m), (Q, K, V, FLOATS), ["scale", "add"], False),
    "a scale behind": (
        lambda q, k, v, m: ((q @ k.mT + m) * 0.5).softmax(-1) @ v,
        (Q, K, V, FLOATS), ["add", "scale"], False,
    ),
    "masked_fill": (
        by_hand(lambda s, m: s.masked_fill(m, -math.inf)),
        (Q, K, V, BOOLS), ["scale", "unless"], False,
    ),
    "GPT-2": (
        by_hand(lambda s: torch.where(TRIL[:, :, :9, :9], s, torch.tensor(LOWEST))),
        SELF, ["scale", "causal"], False,
    ),
    "GPT-2 decoding": (
        by_hand(lambda s: torch.where(TRIL[:, :, 3:12, :12], s, torch.tensor(LOWEST))),
        (Q, K, V), ["scale", "causal"], False,
    ),
    "a causal mask that is added": (
        by_hand(lambda s: s + torch.full((9, 9), -math.inf).triu(1)),
        SELF, ["scale", "causal"], False,
    ),
    "Swin": (
        by_hand(lambda s: ((s + BIAS).view(1, 2, 4, 9, 9) + WINDOWS).view(2, 4, 9, 9)),
        SELF, ["scale", "add", "add"], False,
    ),
    "a scale for each head": (
        by_hand(lambda s, t: s * t), (Q, K, V, torch.rand(4, 1, 1)), ["scale", "multiply"], False
    ),
    "no batch": (by_hand(), (Q[0], K[0], V[0]), ["scale"], False),
    "no heads": (by_hand(), (Q[0, 0], K[0, 0], V[0, 0]), ["scale"], False),
}  # fmt: skip
BIAS, WINDOWS = torch.randn(4, 9, 9), torch.randn(2, 1, 9, 9)


@pytest.mark.parametrize("form", FORMS)
def test_it_fires(form):
    function, inputs, kinds, safe = FORMS[form]
    assert steps(function, *inputs) == (kinds, safe)


def test_causal_masks_keep_their_offset():
    function, inputs, *_ = FORMS["GPT-2 decoding"]
    found = merges(function, *inputs)
    step = found.chosen[0].match.bound["call"].recipe.steps[1]
    assert (step.offset, step.value) == (3, LOWEST)


def test_a_mask_that_is_not_a_triangle_is_read():
    band = torch.ones(9, 9).tril().triu(-3).bool()
    function = by_hand(lambda s: torch.where(band, s, torch.tensor(-math.inf)))
    assert steps(function, *SELF) == (["scale", "where"], False)


def test_nn_multihead_attention():
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 9, 16)
    assert steps(lambda x: attention(x, x, x, need_weights=False)[0], x) == ([], False)


NO_MATCH = {
    "a product alone": (lambda q, k: q @ k.mT, (Q, K), "an input or a constant found"),
    "a dense layer": (
        lambda q: q.softmax(-1) @ torch.ones(8, 12), (Q,), "a dense layer"
    ),
    "along the queries": (
        lambda q, k, v: (q @ k.mT).softmax(-2) @ v, (Q, K, V), "not along the keys"
    ),
    "a cap on the scores": (
        lambda q, k, v: (torch.tanh(q @ k.mT) * 30).softmax(-1) @ v, (Q, K, V),
        "tanh is neither scale nor mask of scores",
    ),
    "no softmax": (
        lambda q, k, v: torch.relu(q @ k.mT) @ v, (Q, K, V), "nn.softmax expected, nn.relu found"
    ),
    "a reshape that cuts the scores": (
        lambda q, k, v: (q @ k.mT).view(2, 4, 12, 9).softmax(-1) @ v[:, :, :9], (Q, K, V),
        "a reshape cuts the scores",
    ),
}  # fmt: skip


def test_weights_that_are_returned_stay():
    def function(q, k, v):
        weights = (q @ k.mT).softmax(-1)
        return weights, weights @ v

    found = merges(function, Q, K, V)
    assert not found.chosen
    assert "it is read elsewhere as well" in found.refused[0].reason and found.refused[0].culprit


@pytest.mark.parametrize("name", NO_MATCH)
def test_it_does_not_match(name):
    function, inputs, reason = NO_MATCH[name]
    found = merges(function, *inputs)
    assert not found.chosen
    assert reason in found.nearest[NAME].reason


def test_float64_is_refused():
    builder = relax.BlockBuilder()
    q, k, v = (relax.Var(n, relax.TensorType((4, 8, 8), "float64")) for n in "qkv")
    with builder.function("main", [q, k, v]):
        with builder.dataflow():
            scores = builder.emit(relax.op.matmul(q, k), "scores")
            weights = builder.emit(relax.op.nn.softmax(scores), "weights")
            out = builder.emit_output(relax.op.matmul(weights, v), "out")
        builder.emit_func_output(out)
    found = find_merges(Graph(builder.finalize()), COMPOUND, HARDWARE)
    assert not found.chosen
    assert "no attention kernel for float64" in found.refused[0].reason


def test_a_call_survives_its_text():
    q, k, v, mask = (relax.Var(n, relax.TensorType((2, 4, 8), "float32")) for n in "qkvm")
    steps = ScoreStep("causal", -math.inf, 2), ScoreStep("add", mask=0, shapes=((2, 4, 8),))
    recipe = Recipe(steps, True)
    again = read_call(make_call(AttentionCall(q, k, v, (mask,), recipe), (2, 4, 8), "float32"))
    assert again is not None and again.recipe == recipe
    assert again.masks[0].same_as(mask) and again.k.same_as(k)
    assert read_call(relax.op.add(q, k)) is None
