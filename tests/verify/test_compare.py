"""What one comparison lets pass and what not."""

import pytest
import torch

from tvmfuse.verify.compare import compare


def compared(got, eager, ideal, **options):
    return compare([got], [eager], [ideal.double()], **options)


def test_eagers_own_error_excuses_and_is_told():
    ideal, eager = torch.ones(3), torch.full((3,), 1.01)
    found = compared(torch.full((3,), 0.985), eager, ideal)
    assert found.passed and "eager itself is off by" in found.note


def test_where_eager_is_off_the_mean_square_decides():
    """Many errors like eager's with one larger by chance pass; as many larger ones do not."""
    ideal = torch.ones(1000, dtype=torch.float64)
    noise = torch.linspace(-1e-3, 1e-3, 1000)
    eager, got = (ideal + noise).float(), (ideal - noise).float()
    got[3] += 5e-3
    assert compare([got], [eager], [ideal]).passed
    got[3] += 6e-3  # more than ten times eager's largest
    assert not compare([got], [eager], [ideal]).passed
    assert not compare([(ideal + 3 * noise).float()], [eager], [ideal]).passed


def test_the_order_in_which_eager_errs_most_is_its_own_error():
    """Three runs of eager that differ by rounding alone; ours is as far off as the worst."""
    ideal = torch.ones(1000, dtype=torch.float64)
    noise = torch.linspace(-2e-4, 2e-4, 1000)
    eager, other, got = ((ideal + k * noise).float() for k in (1, 8, -8))
    assert not compare([got], [eager], [ideal]).passed
    found = compare([got], [eager], [ideal], others=[[other]])
    assert found.passed and "eager itself is off by 0.0016" in found.note
    broken = torch.full_like(other, float("nan"))  # an order that overflows excuses nothing
    assert not compare([got], [eager], [ideal], others=[[broken]]).passed
    assert not compare([(ideal + 30 * noise).float()], [eager], [ideal], others=[[other]]).passed


def test_inputs_beside_excuse_what_is_spread_like_them():
    ideal = torch.ones(1000, dtype=torch.float64)
    noise = torch.linspace(-2e-4, 2e-4, 1000)
    eager, beside, got = ((ideal + k * noise).float() for k in (1, 8, -8))
    found = compare([got], [eager], [ideal], beside=[[beside]])
    assert found.passed and "eager itself is off by 0.0016" in found.note
    assert not compare([(ideal + 30 * noise).float()], [eager], [ideal], beside=[[beside]]).passed


def test_a_step_between_inputs_beside_excuses_no_error_elsewhere():
    """Of a thousand thresholds one is crossed by eager; ours are wrong in a tenth of them."""
    ideal = torch.zeros(1000, dtype=torch.float64)
    ideal[::2] = 1.0
    beside, got = ideal.float(), ideal.float()
    beside[0], got[:100] = 0.0, 0.0
    assert compare([got], [ideal.float()], [ideal], others=[[beside]]).passed  # of true orders
    assert not compare([got], [ideal.float()], [ideal], beside=[[beside]]).passed


def test_where_eager_is_right_one_error_is_enough():
    ideal = torch.ones(1000, dtype=torch.float64)
    got = ideal.float()
    got[3] += 1e-3
    assert not compare([got], [ideal.float()], [ideal]).passed


def test_eagers_own_error_excuses_no_more_than_twice_itself():
    found = compared(torch.full((3,), 0.97), torch.full((3,), 1.01), torch.ones(3))
    assert not found.passed and "twice the 0.01 of eager" in found.reason


def test_small_errors_need_no_excuse():
    found = compared(torch.full((3,), 1.00001), torch.ones(3), torch.ones(3))
    assert found.passed and found.note == ""


def test_overflow_is_told():
    got, eager = torch.tensor([float("nan"), 1.0]), torch.tensor([float("inf"), 1.0])
    assert not compared(torch.tensor([0.0, 1.0]), eager, eager).passed
    found = compared(torch.tensor([0.0, 1.0]), eager, eager, overflowing=True)
    assert found.passed and "finite on one side" in found.note
    assert compared(got, eager, eager, overflowing=True).note.endswith("their order")


def test_overflow_excuses_no_wrong_shape():
    assert not compared(torch.ones(2), torch.ones(3), torch.ones(3), overflowing=True).passed


def test_eager_that_overflows_in_half_is_no_model():
    eager = torch.tensor([1.0, float("inf")], dtype=torch.float16)
    ideal = torch.tensor([1.0, 200.0], dtype=torch.float64)
    right = torch.tensor([1.0, 200.0], dtype=torch.float16)
    assert compare([right], [eager], [ideal]).passed
    assert not compare([right * 2], [eager], [ideal]).passed
    assert not compare([right.float()], [eager.float()], [ideal]).passed  # float32 has the range


@pytest.mark.parametrize(("number", "passes"), [(3e38, True), (2e38, False)])
def test_eager_that_overflows_at_the_largest_number_does_not_forbid_the_right_number(
    number, passes
):
    got, eager, ideal = (torch.tensor([v], dtype=t) for v, t in (
        (number, torch.float32), (float("inf"), torch.float32), (3e38, torch.float64)
    ))  # fmt: skip
    assert compare([got], [eager], [ideal], at_limit=True).passed is passes
    assert not compare([got], [eager], [ideal]).passed
