"""Signatures: trees are flattened and rebuilt, and what does not fit is told."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmfuse.signature import Signature, TensorSpec, flatten, unflatten

SIGNATURE = Signature(
    (TensorSpec("x", (1, 3, 8, 8), "float32"), TensorSpec("n", (), "int64")),
    (TensorSpec("output_0", (1, 5), "bfloat16"),),
    {"tuple": [{"tensor": 0}, {"dict": {"n": {"tensor": 1}, "flag": {"const": True}}}]},
    {"list": [{"tensor": 0}, {"const": None}]},
)


def test_json_round_trip():
    assert Signature.from_json(json.loads(json.dumps(SIGNATURE.to_json()))) == SIGNATURE


def test_missing_key_is_refused():
    data = SIGNATURE.to_json()
    del data["output_tree"]
    with pytest.raises(KeyError, match="output_tree"):
        Signature.from_json(data)


def test_spec_as_text():
    assert str(SIGNATURE.inputs[0]) == "x: float32[1, 3, 8, 8]"
    assert str(SIGNATURE.inputs[1]) == "n: int64[]"


def test_flatten_and_unflatten():
    value = ("X", {"flag": True, "n": "N"})
    assert flatten(SIGNATURE.input_tree, value) == ["X", "N"]
    assert unflatten(SIGNATURE.input_tree, ["X", "N"]) == value
    assert unflatten(SIGNATURE.output_tree, ["Y"]) == ["Y", None]


def test_keys_in_any_order_give_one_flat_order():
    tree = {"dict": {"b": {"tensor": 0}, "a": {"tensor": 1}}}
    assert flatten(tree, {"a": 1, "b": 0}) == flatten(tree, {"b": 0, "a": 1}) == [0, 1]


PAIR = {"tuple": [{"tensor": 0}, {"tensor": 1}]}
NAMED = {"dict": {"a": {"tensor": 0}, "b": {"tensor": 1}}}
WRONG = [
    (PAIR, (1,), "expected a tuple of 2, got a tuple of 1"),
    (PAIR, [1, 2, 3], "expected a tuple of 2, got a list of 3"),
    (PAIR, 5, "expected a tuple of 2, got a int"),
    (NAMED, {"a": 1}, r"a dict with the keys \['a', 'b'\], got a dict with the keys \['a'\]"),
    (NAMED, (1, 2), r"a dict with the keys \['a', 'b'\], got a tuple of 2"),
    ({"tuple": [PAIR]}, ((1,),), "expected a tuple of 2"),
]


@pytest.mark.parametrize("tree, value, message", WRONG)
def test_what_does_not_fit_is_told(tree, value, message):
    with pytest.raises(ValueError, match=message):
        flatten(tree, value)


def trees():
    """Trees whose tensors are numbered in flat order."""
    leaf = st.sampled_from([{"tensor": 0}, {"const": None}, {"const": 1.5}, {"const": "a"}])
    return st.recursive(
        leaf,
        lambda sub: st.one_of(
            st.lists(sub, max_size=3).map(lambda s: {"tuple": s}),
            st.lists(sub, max_size=3).map(lambda s: {"list": s}),
            st.dictionaries(st.sampled_from("abc"), sub, max_size=3).map(lambda s: {"dict": s}),
        ),
        max_leaves=8,
    ).map(lambda tree: _numbered(tree, [0]))


def _numbered(tree, counter):
    kind, body = next(iter(tree.items()))
    if kind == "tensor":
        counter[0] += 1
        return {"tensor": counter[0] - 1}
    if kind == "const":
        return tree
    if kind == "dict":
        return {kind: {key: _numbered(sub, counter) for key, sub in body.items()}}
    return {kind: [_numbered(sub, counter) for sub in body]}


@given(trees())
def test_any_tree_round_trips(tree):
    leaves = [f"t{i}" for i in range(json.dumps(tree).count('"tensor"'))]
    value = unflatten(tree, leaves)
    assert flatten(tree, value) == leaves
    assert unflatten(json.loads(json.dumps(tree)), leaves) == value


NAMED_ONES = Signature(
    (TensorSpec("x", (1,), "float32"), TensorSpec("m", (1,), "float32")),
    (),
    {"tuple": [{"tensor": 0}, {"tensor": 1}]},
    {"tuple": []},
    ("x", "m"),
    by_name=1,
)
POSITIONAL = Signature((), (), NAMED_ONES.input_tree, {"tuple": []}, ("x", "m"))


def test_arguments_by_name_are_bound_and_taken_apart():
    assert NAMED_ONES.bind(("X",), {"m": "M"}) == ("X", "M")
    assert NAMED_ONES.bind((), {"m": "M", "x": "X"}) == ("X", "M")
    assert NAMED_ONES.apart(("X", "M")) == (("X",), {"m": "M"})
    assert NAMED_ONES.call(lambda *a, **k: (a, k), ("X", "M")) == (("X",), {"m": "M"})
    assert POSITIONAL.bind(("X", "M"), {}) == POSITIONAL.bind(("X",), {"m": "M"}) == ("X", "M")
    assert Signature.from_json(json.loads(json.dumps(NAMED_ONES.to_json()))) == NAMED_ONES


@pytest.mark.parametrize(
    ("signature", "args", "kwargs", "message"),
    [
        (NAMED_ONES, ("X", "M"), {}, "takes 1; pass m= by keyword"),
        (NAMED_ONES, ("X",), {}, "m is missing"),
        (NAMED_ONES, ("X",), {"m": 1, "q": 2}, "no argument is called 'q'.*x, m"),
        (POSITIONAL, ("X",), {"x": 1, "m": 2}, "x is given by position and by keyword"),
        (POSITIONAL, ("X", "M", "Z"), {"m": 2}, "3 positional arguments and keywords"),
    ],
)
def test_arguments_that_do_not_fit_are_told(signature, args, kwargs, message):
    with pytest.raises(ValueError, match=message):
        signature.bind(args, kwargs)
