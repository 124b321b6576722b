"""Post-training quantisation: accuracy on data, and what is refused."""

import numpy as np
import pytest
import torch
from torch import nn

import tvmfuse
from tvmfuse.errors import CalibrationError, OptionError
from tvmfuse.frontend.torch_export import export_program
from tvmfuse.precision.quantize import load_calibration, quantise

pytest.importorskip("torchao")


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.two = nn.Conv2d(16, 16, 3, padding=1)
        self.out = nn.Linear(16 * 16, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.one(x)))
        x = torch.relu(x + self.two(x))
        return self.out(nn.functional.max_pool2d(x, 2).flatten(1))


def _images(count=4):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 1, 8, 8, generator=generator) for _ in range(count)]


def _quantised(module, example, batches, **more):
    return quantise(export_program(module.eval(), (example,)), (example,), batches, **more)


def test_a_model_is_quantised_and_compiled():
    torch.manual_seed(0)
    module, data = Small().eval(), _images()
    compiled = tvmfuse.compile(
        module, (data[0],), trials=0, no_log=True, measure="none", dtype="int8",
        calibrate=lambda: data,
    )  # fmt: skip
    account = compiled.report["provenance"]["quantization"]
    assert account["batches"] == 4 and account["layers"] == 3 and not account["kept_in_float32"]
    assert compiled.report["verify"]["passed"]
    got = torch.from_dlpack(compiled(data[0]))
    with torch.no_grad():
        want = module(data[0])
    assert (got - want).abs().max() < 0.05 * want.abs().max()


def test_percentiles_leave_outliers_out():
    torch.manual_seed(0)
    data = _images()
    data[0][0, 0, 0, 0] = 1000.0

    def scale(observer):
        made = _quantised(Small(), data[1], lambda: data, observer=observer)
        nodes = made.program.graph.nodes
        return next(n.args[1] for n in nodes if "quantize_per_tensor" in str(n.target))

    assert scale("minmax") > 3.9 > scale("percentile")


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        (list, "gave no batch"),
        (lambda: [torch.full((2, 1, 8, 8), float("nan"))], "batch 1 .* NaN"),
        (lambda: [torch.zeros(3, 1, 8, 8)], r"\(3, 1, 8, 8\), the model takes"),
        (lambda: [torch.zeros(2, 1, 8, 8).double()], "float64"),
        (lambda: ["text"], "not a tensor"),
        (lambda: [(torch.zeros(2, 1, 8, 8),) * 2], "structure"),
    ],
)
def test_bad_data_is_refused(batches, said):
    with pytest.raises(CalibrationError, match=said):
        _quantised(Small(), _images()[0], batches)


def test_a_value_that_becomes_nan_is_named():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(8, 8)

        def forward(self, x):
            return self.f(torch.sqrt(x))

    with pytest.raises(CalibrationError, match=r"sqrt.* NaN or infinite"):
        _quantised(Root(), torch.ones(2, 8), lambda: [-torch.ones(2, 8)])


def test_constant_channels_and_tensors_are_told():
    module = Small()
    with torch.no_grad():
        module.two.weight[3] = 0
    zeros = torch.zeros(2, 1, 8, 8)
    made = _quantised(module, zeros, lambda: [zeros])
    assert made.account["constant"]
    assert bool(made.module(zeros).isfinite().all())


def test_layers_without_a_kernel_are_named():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide = nn.Conv1d(4, 8, 3)
            self.narrow = nn.Conv2d(4, 8, 3, groups=2)
            self.f = nn.Linear(4, 4)

        def forward(self, x, y):
            return self.wide(x), self.narrow(y), self.f(y)

    inputs = (torch.randn(1, 4, 9), torch.randn(1, 4, 6, 4))
    made = quantise(export_program(Mixed().eval(), inputs), inputs, None)
    assert set(made.account["kept_in_float32"]) == {"wide", "narrow"}
    assert made.account["calibration"] == "random numbers"


def test_a_model_without_layers_is_refused():
    with pytest.raises(CalibrationError, match="no layer"):
        _quantised(nn.ReLU(), torch.ones(2, 8), None)


def test_what_names_no_data_is_refused():
    assert load_calibration("random") is None
    for spec in ("nothing", "no.such.module:f", "math:pi"):
        with pytest.raises(OptionError, match="--calibrate"):
            load_calibration(spec)


def test_a_quantised_model_is_not_quantised_again():
    data = _images()
    made = _quantised(Small(), data[0], lambda: data)
    with pytest.raises(OptionError, match="quantised already"):
        tvmfuse.compile(made.module, (data[0],), dtype="int8", calibrate="random")


@pytest.mark.slow
def test_digits_lose_nothing():
    """A network trained here on scikit-learn's digits: at most 0.5 % of them change sides."""
    datasets = pytest.importorskip("sklearn.datasets")
    torch.manual_seed(0)
    digits = datasets.load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(digits.target)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(images)))
    images, labels = images[order], labels[order]
    train, held = images[:1200], images[1200:1792]
    module = Small()
    optimiser = torch.optim.Adam(module.parameters(), 3e-3)
    for step in range(300):
        at = torch.arange(64) + 64 * (step % 18)
        loss = nn.functional.cross_entropy(module(train[at]), labels[at])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    module.eval()
    compiled = tvmfuse.compile(
        module, (held,), trials=0, no_log=True, measure="none", dtype="int8",
        calibrate=lambda: [train[:592], train[592:1184]],
    )  # fmt: skip
    with torch.no_grad():
        plain = (module(held).argmax(1) == labels[1200:1792]).float().mean()
    got = torch.from_dlpack(compiled(held))
    ours = (got.argmax(1) == labels[1200:1792]).float().mean()
    assert plain > 0.95
    assert abs(float(plain - ours)) <= 0.005
