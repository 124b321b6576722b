import pytest
import torch
from torch.nn import functional as F

from tvmfuse.frontend.decompositions.convolutions import named_padding, one_sample, transposed

GENERATOR = torch.Generator().manual_seed(0)
SIZES = (9, 7, 6)
CONVOLVE = (F.conv1d, F.conv2d, F.conv3d)


def drawn(*shape):
    return torch.randn(shape, generator=GENERATOR)


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), (2, 1), (4, 2)])
def test_padding_by_name(rank, padding, kernel, dilation):
    x, w = drawn(2, 4, *(s + 4 for s in SIZES[:rank])), drawn(6, 2, *[kernel] * rank)
    bias = drawn(6)
    got = named_padding(x, w, bias, 1, padding, dilation, 2, rank=rank)
    close(got, CONVOLVE[rank - 1](x, w, bias, 1, padding, dilation, 2))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_sample_without_a_batch(rank):
    x, w = drawn(4, *SIZES[:rank]), drawn(6, 4, *[3] * rank)
    close(one_sample(x, w, None, 2, 1, rank=rank), CONVOLVE[rank - 1](x, w, None, 2, 1))
    assert one_sample(x.unsqueeze(0), w, rank=rank) is NotImplemented


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("stride", "padding", "more", "dilation"),
    [((1, 1, 1), 0, 0, 1), ((2, 3, 1), 1, 0, 1), ((2, 2, 2), (1, 0, 2), 1, 2)],
)
def test_transposed_in_three_dimensions(stride, padding, more, dilation, groups):
    x, w, bias = drawn(2, 4, 3, 4, 5), drawn(4, 3, 3, 2, 3), drawn(3 * groups)
    got = transposed(x, w, bias, list(stride), padding, dilation, True, more, groups)
    close(got, F.conv_transpose3d(x, w, bias, stride, padding, more, groups, dilation))


def test_output_padding_beyond_the_stride():
    x, w = drawn(1, 2, 4, 5), drawn(2, 3, 3, 3)
    got = transposed(x, w, None, [1, 1], [1, 1], [3, 3], True, [2, 1], 1)
    close(got, F.conv_transpose2d(x, w, None, 1, 1, (2, 1), 1, 3))


def test_what_tvm_has_is_left_to_it():
    x, w = drawn(1, 2, 4, 5), drawn(2, 3, 3, 3)
    assert transposed(x, w, None, [2, 2], [0, 0], [1, 1], True, [1, 1], 1) is NotImplemented
    assert transposed(x, w, None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1) is NotImplemented


def test_bilinear_form(same):
    w, y = drawn(3, 4, 5), drawn(2, 5)
    same("_trilinear.default", lambda x: F.bilinear(x, y, w), drawn(2, 4), rtol=1e-4, atol=1e-5)
