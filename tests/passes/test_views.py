"""Rearrangements as strides, against NumPy's own."""

import numpy as np
import pytest

from tvmfuse.passes.views import Strided, merged, refined, split, whole

SHAPE = (2, 3, 4, 5)
STORED = np.arange(np.prod(SHAPE)).reshape(SHAPE)


def elements(view):
    """The tensor that a view means, of places in the stored one."""
    flat = np.array(view.offset)
    for extent, stride in (f for axis in view.axes for f in axis):
        flat = flat[..., None] + np.arange(extent) * stride
    return flat.reshape(view.shape)


V = whole(SHAPE)
MOVES = {
    "as it is": (V, STORED),
    "transpose": (V.permute((2, 0, 3, 1)), STORED.transpose(2, 0, 3, 1)),
    "split": (V.reshape((2, 3, 2, 2, 5)), STORED.reshape(2, 3, 2, 2, 5)),
    "merge": (V.reshape((6, 20)), STORED.reshape(6, 20)),
    "merge across a transpose": (
        V.permute((0, 2, 1, 3)).reshape((8, 15)), STORED.transpose(0, 2, 1, 3).reshape(8, 15)
    ),
    "axes of extent 1": (V.reshape((1, 2, 3, 1, 20)), STORED.reshape(1, 2, 3, 1, 20)),
    "slice": (V.slice(2, 1, 3), STORED[:, :, 1:3]),
    "one of a slice": (V.slice(1, 2, 3), STORED[:, 2:3]),
    "steps": (V.slice(3, 1, 5, 2), STORED[..., 1:5:2]),
    "repeat": (V.repeat(3, 1), STORED.repeat(3, 1)),
    "repeat, then reshape": (V.repeat(2, 1).reshape((12, 20)), STORED.repeat(2, 1).reshape(12, 20)),
    "broadcast": (
        V.slice(1, 0, 1).broadcast((7, 2, 6, 4, 5)), np.broadcast_to(STORED[:, :1], (7, 2, 6, 4, 5))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_moves_are_those_of_numpy(name):
    view, want = MOVES[name]
    assert np.array_equal(elements(view), want)


def test_what_has_no_strides_is_none():
    across = V.permute((0, 2, 1, 3))
    assert whole((6, 2)).reshape((4, 3)) is None  # 6 cannot be cut into 4
    assert across.reshape((8, 15)).slice(0, 1, 3) is None  # the axis has two strides
    assert V.reshape((2, 3, 4, 6)) is None  # other elements


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (3, 1, 0, 2), (0, 1, 2, 3)])
def test_inverse(order):
    result = V.permute(order).reshape((STORED.size,))
    back = result.inverse(SHAPE)
    moved = STORED.transpose(order).reshape(-1)
    assert np.array_equal(moved[elements(back)], STORED)


def test_no_inverse_where_elements_are_lost_or_double():
    assert V.slice(0, 0, 1).inverse(SHAPE) is None
    assert Strided(0, (((2, 0), (60, 1)),)).inverse(SHAPE) is None


def test_factors():
    assert merged(((3, 20), (4, 5))) == (12, 5)
    assert merged(((3, 20), (4, 1))) is None
    assert merged(()) == (1, 0)
    assert refined([((6, 1),), ((2, 30), (3, 1)), ()]) == (2, 3)
    assert refined([((2, 3), (3, 1)), ((3, 2), (2, 1))]) is None  # 2·3 and 3·2 cut one another
    assert split(((6, 4),), (2, 3)) == (12, 4)
    assert split((), (1,)) == (0,)
