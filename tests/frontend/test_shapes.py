import pytest
import torch

from tvmfuse.errors import OptionError
from tvmfuse.frontend.shapes import make_inputs, parse_shapes, rebatch


def test_forms():
    assert parse_shapes("1,3,8,8") == [((1, 3, 8, 8), None)]
    assert parse_shapes((1, 4)) == [((1, 4), None)]
    assert parse_shapes("1x8:int64; 1,4") == [((1, 8), torch.int64), ((1, 4), None)]


@pytest.mark.parametrize("text", ["", "1,a", "1,0", "1,-3", "3.5", (1, 0)])
def test_bad_extents(text):
    with pytest.raises(OptionError, match="positive integers"):
        parse_shapes(text)


def test_bad_element_type():
    with pytest.raises(OptionError, match="'int65' is no element type"):
        parse_shapes("1,8:int65")


def test_inputs_are_seeded_and_typed():
    shapes = parse_shapes("1,8:int64;1,4;1,3:bool;1,2:float16")
    one, two = make_inputs(shapes, 3, 0), make_inputs(shapes, 3, 0)
    assert [t.dtype for t in one] == [dtype or torch.float32 for _, dtype in shapes]
    assert [t.shape[0] for t in one] == [3, 3, 3, 3]
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_types_that_are_not_said_are_those_of_the_example():
    example = ({"ids": torch.zeros(1, 4, dtype=torch.int64)}, torch.zeros(2, dtype=torch.bool))
    made = make_inputs(parse_shapes("1,8;2,2:int32;3"), None, 0, like=example)
    assert [t.dtype for t in made] == [torch.int64, torch.int32, torch.float32]


def test_rebatch_repeats_and_cuts_rows():
    x, pair = torch.arange(2.0)[:, None], {"k": torch.arange(2)}
    longer = rebatch((x, pair, 7), 3)
    assert longer[0].flatten().tolist() == [0, 1, 0] and longer[2] == 7
    assert rebatch((x, pair), 1)[1]["k"].tolist() == [0]


@pytest.mark.parametrize("inputs", [(torch.zeros(2, 3), torch.zeros(3)), (torch.tensor(1.0),), ()])
def test_rebatch_refuses_unclear_batches(inputs):
    with pytest.raises(OptionError, match="--batch 4"):
        rebatch(inputs, 4)
