"""Elements of stored tensors by offset and strides."""

import itertools

import numpy as np
import pytest

from tvmfuse.schedules.cpu.text import element
from tvmfuse.schedules.strides import by_axis, row_major

SHAPE = (2, 5, 3, 4, 8)


def place(text, **values):
    """The flat place that index text gives."""
    parts = text.replace("T.int64(", "(").split(", ")
    return np.ravel_multi_index([eval(p, {}, values) for p in parts], SHAPE)


@pytest.mark.parametrize(
    ("offset", "terms", "divides"),
    [
        (0, [("a", 480, 2), ("b", 8, 4), ("c", 96, 5), ("d", 1, 8)], False),
        (32, [("a", 480, 2), ("c", 96, 5), ("d", 1, 8)], False),  # the second of three parts
        (0, [("a", 0, 7), ("c", 96, 5)], False),  # broadcast
        (0, [("a", 8, 12), ("d", 1, 8)], True),  # one variable over two axes
        (8, [("a", 192, 2), ("d", 2, 4)], False),  # steps of two
    ],
)
def test_every_element_is_the_one_meant(offset, terms, divides):
    text = element(SHAPE, offset, terms)
    assert ("//" in text) is divides
    assert (by_axis(SHAPE, offset, [t[1:] for t in terms]) is None) is divides
    for at in itertools.product(*[range(e) for _, _, e in terms]):
        values = {name: i for (name, _, _), i in zip(terms, at, strict=True)}
        want = offset + sum(i * s for i, (_, s, _) in zip(at, terms, strict=True))
        assert place(text, **values) == want


def test_row_major():
    assert row_major(SHAPE) == [480, 96, 32, 8, 1]
    assert row_major(()) == []
