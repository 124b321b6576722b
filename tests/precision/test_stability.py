"""What leaves half precision's range is named, with its place and its share; what stays is not."""

import pytest
import torch
from torch import nn

from tvmfuse.errors import ImportModelError
from tvmfuse.frontend.torch_export import export_program
from tvmfuse.precision.stability import BOUND, SQUARES, SUM, VALUE, stability_of


def found(module, *inputs):
    return stability_of(export_program(module.eval(), inputs), inputs)


def rows(report, dtype):
    return {(r.operator, r.what) for r in report.troubled(dtype)}


class Grows(nn.Module):
    def forward(self, x):
        y = torch.exp(x)
        return y * 1e-6


def test_overflow_and_underflow_with_place_and_share():
    x = torch.tensor([0.0, 1.0, 12.0, -20.0])
    report = found(Grows(), x)
    exp = next(r for r in report.ranges if r.operator == "exp")
    assert exp.spans["float16"].overflow == 0.25 and exp.spans["bfloat16"].overflow == 0
    assert exp.spans["float16"].underflow == 0.25
    assert exp.largest == pytest.approx(162754.79, rel=1e-6)
    assert exp.smallest == pytest.approx(2.061e-9, rel=1e-3)
    assert "test_stability.py" in exp.place and "torch.exp(x)" in exp.place
    assert report.troubled("bfloat16") == []
    mul = next(r for r in report.ranges if r.operator == "mul")
    assert mul.spans["float16"].subnormal == 0.5  # 1e-6 and e·1e-6


def test_product_bound_is_called_one():
    linear = nn.Linear(1024, 4, bias=False)
    nn.init.constant_(linear.weight, 1.0)
    x = torch.full((1, 1024), 100.0)
    x[:, ::2] *= -1  # the value is 0, the bound 102400
    report = found(linear, x)
    assert rows(report, "float16") == {(next(iter(rows(report, "float16")))[0], BOUND)}
    bound = next(r for r in report.ranges if r.what == BOUND)
    assert bound.largest == pytest.approx(102400) and bound.elements == 1


@pytest.mark.parametrize("groups", [1, 2])
def test_bound_of_a_convolution_counts_its_terms(groups):
    conv = nn.Conv2d(4, 4, 3, bias=False, groups=groups)
    nn.init.constant_(conv.weight, 0.5)
    report = found(conv, torch.full((1, 4, 5, 5), 2.0))
    bound = next(r for r in report.ranges if r.what == BOUND)
    assert bound.largest == pytest.approx(4 // groups * 9 * 0.5 * 2.0)


def test_sums_inside_a_norm():
    report = found(nn.LayerNorm(64), torch.arange(128.0).reshape(2, 64) * 100)
    inside = {r.what: r.largest for r in report.ranges if r.what != VALUE}
    assert inside[SUM] == pytest.approx(sum(range(64, 128)) * 100)
    assert inside[SQUARES] == pytest.approx(64 * 100**2 * (64**2 - 1) / 12)
    assert {what for _, what in rows(report, "float16")} == {SUM, SQUARES}


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2)

    def forward(self, x, i):
        y = self.up(self.norm(self.conv(x)))
        q = y.flatten(2)
        z = nn.functional.scaled_dot_product_attention(q, q, q)
        return z.softmax(-1).mean((1, 2)), z.var(), z.mean(), i + 1


def test_ordinary_values_are_in_no_trouble():
    torch.manual_seed(0)
    report = found(Several(), torch.randn(1, 3, 6, 6), torch.tensor([3]))
    assert {r.what for r in report.ranges} == {VALUE, BOUND, SUM, SQUARES}
    assert report.troubled("bfloat16") == []
    data = report.to_json()
    assert set(data["troubled"]) == {"float16", "bfloat16"}
    assert len(data["ranges"]) == len(report.ranges)


class Single(nn.Module):
    def forward(self, x):
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()


def test_model_without_a_float64_form_is_an_error():
    program = export_program(Single().eval(), (torch.randn(2, 2),))
    with pytest.raises(ImportModelError, match="does not run in float64"):
        stability_of(program, (torch.randn(2, 2),))
