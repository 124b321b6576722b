"""Anchors: output extents, operation counts, and the text that travels with a kernel."""

import json

import pytest

from tvmfuse.schedules.anchor import Conv2d, Dense, from_text, to_text

CONV = Conv2d(2, 23, 17, 6, 9, 3, 5, (2, 1), (1, 0, 2, 3), (1, 2), 3, "float32")


@pytest.mark.parametrize(
    "anchor", [CONV, Dense((), 1, 7, 5, "float32"), Dense((2, 3), 4, 7, 5, "float16")]
)
def test_round_trip(anchor):
    text = to_text(anchor)
    json.loads(text)
    again = from_text(text)
    assert again == anchor and type(again) is type(anchor)
    assert hash(again) == hash(anchor)  # lists instead of tuples would not be hashable


def test_unknown_kind_is_refused():
    with pytest.raises(KeyError, match="pooling"):
        from_text('{"kind": "pooling"}')


def test_missing_field_is_refused():
    data = json.loads(to_text(CONV))
    del data["groups"]
    with pytest.raises(TypeError, match="groups"):
        from_text(json.dumps(data))


@pytest.mark.parametrize("dilation", [(1, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (3, 2)])
def test_extents_are_those_of_torch(stride, dilation):
    import torch

    conv = Conv2d(2, 23, 17, 6, 9, 3, 5, stride, (1, 0, 2, 3), dilation, 3, "float32")
    x = torch.nn.functional.pad(torch.empty(2, 6, 23, 17), (0, 3, 1, 2))
    y = torch.nn.functional.conv2d(
        x, torch.empty(9, 2, 3, 5), stride=stride, dilation=dilation, groups=3
    )
    assert tuple(y.shape[2:]) == (conv.OH, conv.OW)


def test_flops():
    assert Dense((2, 3), 4, 7, 5, "float32").flops == 2 * (2 * 3 * 4) * 7 * 5
    assert CONV.flops == 2 * (2 * CONV.OH * CONV.OW * 9) * (3 * 5 * 2)
