"""Every compound and horizontal rule fires by its own name, and refuses with a reason."""

import numpy as np
import pytest
from tvm import relax

from tvmfuse.fusion.merging import find_merges
from tvmfuse.fusion.rules.compound import COMPOUND, FORMS, AttentionRule
from tvmfuse.fusion.rules.horizontal import HORIZONTAL, TAILS
from tvmfuse.graph import Graph
from tvmfuse.hardware import resolve_target

HARDWARE = resolve_target("llvm", 1)
RNG = np.random.default_rng(0)
op = relax.op
N = 8  # queries, keys and width


def constant(*shape, dtype="float32"):
    return relax.const(RNG.standard_normal(shape).astype(dtype))


def graph_of(shapes, body, dtype="float32"):
    """A graph of one function; ``body`` gets ``emit`` and inputs, the last one boolean."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"i{n}", relax.TensorType(s, dtype)) for n, s in enumerate(shapes)]
    inputs.append(relax.Var("mask", relax.TensorType((N, N), "bool")))
    with builder.function("main", inputs):
        with builder.dataflow():
            number = iter(range(1000))
            outs = body(lambda v: builder.emit(v, f"n{next(number)}"), *inputs)
            result = builder.emit_output(relax.Tuple(outs))
        builder.emit_func_output(result)
    return Graph(builder.get())


def attention(form, dtype="float32"):
    """Attention whose scores pass through the steps of ``form``."""

    def number(value):
        return relax.const(value, dtype)

    def body(emit, q, k, v, added, mask):
        scores = emit(op.matmul(q, k))
        for kind in form:
            scores = {
                "scale": lambda s: emit(op.multiply(s, number(0.5))),
                "add": lambda s: emit(op.add(s, added)),
                "multiply": lambda s: emit(op.multiply(s, added)),
                "causal": lambda s: emit(
                    op.where(relax.const(np.tri(N, dtype=bool)), s, number(-np.inf))
                ),
                "where": lambda s: emit(op.where(mask, s, number(-1e9))),
                "unless": lambda s: emit(op.where(mask, number(-1e9), s)),
                "safe": lambda s: s,
            }[kind](scores)
        weights = emit(op.nn.softmax(scores))
        if "safe" in form:
            hidden = emit(op.astype(emit(op.equal(scores, number(-np.inf))), dtype))
            none = emit(op.greater(emit(op.min(hidden, [-1], keepdims=True)), number(0.0)))
            weights = emit(op.where(none, emit(op.zeros_like(weights)), weights))
        return [emit(op.matmul(weights, v))]

    return graph_of([(N, N)] * 4, body, dtype)


def names(found):
    return [merge.rule.name for merge in found.chosen]


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
def test_attention_fires_by_the_rule_of_its_form(form):
    assert names(find_merges(attention(form), COMPOUND, HARDWARE)) == [AttentionRule(form).name]


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
def test_a_form_that_is_switched_off_joins_by_no_other_rule(form):
    rules = [rule for rule in COMPOUND if rule.form != form]
    found = find_merges(attention(form), rules, HARDWARE)
    assert names(found) == []
    assert all("another rule's form" in near.reason for near in found.nearest.values())


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
def test_attention_in_float64_is_refused_by_the_rule_of_its_form(form):
    found = find_merges(attention(form, "float64"), COMPOUND, HARDWARE)
    ((rule, reason),) = {(r.rule, r.reason) for r in found.refused}
    assert (rule, reason) == (AttentionRule(form).name, "no attention kernel for float64")


def test_a_form_that_no_row_has_fires_by_the_last_rule():
    form = ("multiply", "multiply", "add")
    assert form not in FORMS
    assert names(find_merges(attention(form), COMPOUND, HARDWARE)) == [AttentionRule().name]


BEHIND = {
    "add": lambda y: op.add(y, constant(N)),
    "relu": op.nn.relu,
    "silu": op.nn.silu,
    "tanh": op.tanh,
}


def siblings(root, tail, returned=False):
    """Two siblings with a tail each, read by products or returned."""
    shape = (4, N) if root == "matmul" else (1, 6, 6, N)

    def one(emit, x):
        if root == "matmul":
            y = emit(op.matmul(x, constant(N, N)))
        else:
            layout = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
            y = emit(op.nn.conv2d(x, constant(N, 1, 1, N), **layout))
        for step in tail:
            y = emit(BEHIND[step](y))
        return y

    def body(emit, x, mask):
        both = [one(emit, x) for _ in range(2)]
        return both if returned else [emit(op.reshape(y, (-1,))) for y in both]

    return graph_of([shape], body)


ROWS = [(root, tail) for root, tails in TAILS.items() for tail in tails]


def rule_of(root, tail):
    (found,) = [r for r in HORIZONTAL if (r.root, r.tail) == ((root,), tail)]
    return found


@pytest.mark.parametrize(("root", "tail"), ROWS)
def test_siblings_fire_by_the_rule_of_their_tail(root, tail):
    rule = rule_of(root, tail)
    assert names(find_merges(siblings(root, tail), HORIZONTAL, HARDWARE)) == [rule.name]


@pytest.mark.parametrize(("root", "tail"), ROWS)
def test_siblings_refuse_what_would_be_copied_or_is_off(root, tail):
    rule = rule_of(root, tail)
    found = find_merges(siblings(root, tail, returned=True), HORIZONTAL, HARDWARE)
    assert names(found) == []
    assert "the model returns its part" in found.nearest[rule.name].reason
    rest = [r for r in HORIZONTAL if r is not rule]
    assert names(find_merges(siblings(root, tail), rest, HARDWARE)) == []


def test_another_tail_fires_by_the_last_rule():
    for root in TAILS:
        found = find_merges(siblings(root, ("tanh",)), HORIZONTAL, HARDWARE)
        assert names(found) == [rule_of(root, None).name]


def test_every_rule_has_a_name_of_its_own_and_a_model():
    rules = (*COMPOUND, *HORIZONTAL)
    assert len({r.name for r in rules}) == len(rules)
    assert all(r.seen_in for r in rules if r is not COMPOUND[-1])
