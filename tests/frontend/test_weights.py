import pytest
import torch
from torch import nn

from tvmfuse.errors import ImportModelError
from tvmfuse.frontend.weights import calibrate, load_state_dict, randomize, reset_random


@pytest.mark.parametrize("wrap", [None, "state_dict", "model"])
def test_state_dict_alone_or_wrapped(tmp_path, wrap):
    source, target = nn.Linear(4, 3), nn.Linear(4, 3)
    state = source.state_dict()
    torch.save(state if wrap is None else {wrap: state, "epoch": 3}, tmp_path / "w.pth")
    load_state_dict(target, tmp_path / "w.pth")
    assert torch.equal(source.weight, target.weight)


def test_mismatches_are_listed_by_kind(tmp_path):
    state = {"weight": torch.zeros(5, 4), "extra": torch.zeros(1)}
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(ImportModelError) as caught:
        load_state_dict(nn.Linear(4, 3), tmp_path / "w.pth")
    message = str(caught.value)
    assert "1 missing: bias" in message
    assert "1 unexpected: extra" in message
    assert "weight is (5, 4) instead of (3, 4)" in message


def test_pickled_code_is_not_run(tmp_path):
    torch.save(nn.Linear(4, 3), tmp_path / "whole.pth")
    with pytest.raises(ImportModelError, match="weights_only=True"):
        load_state_dict(nn.Linear(4, 3), tmp_path / "whole.pth")


def test_something_else_than_a_state_dict(tmp_path):
    torch.save([torch.zeros(3)], tmp_path / "list.pth")
    with pytest.raises(ImportModelError, match="hold a list"):
        load_state_dict(nn.Linear(4, 3), tmp_path / "list.pth")


def test_reset_is_seeded():
    one, two = nn.Linear(4, 3), nn.Linear(4, 3)
    reset_random(one, 7)
    reset_random(two, 7)
    assert torch.equal(one.weight, two.weight)
    reset_random(two, 8)
    assert not torch.equal(one.weight, two.weight)


def test_statistics_skip_norms_without_them():
    norm = nn.BatchNorm1d(3, affine=False, track_running_stats=False)
    randomize(norm, 0)
    assert norm.running_var is None and norm.weight is None


def test_constant_parameters_come_alive():
    module = nn.Module()
    module.head = nn.Parameter(torch.zeros(5, 4))
    module.token = nn.Parameter(torch.zeros(1, 1, 4))
    module.layer_scale = nn.Parameter(torch.full((4, 1, 1), 1e-6))
    module.gain = nn.Parameter(torch.ones(4))
    module.drawn = nn.Parameter(torch.tensor([1.0, 2.0]))
    randomize(module, 0)
    assert module.head.std() > 0.1 and module.token.std() > 0.01
    assert 0.1 <= module.layer_scale.min() < module.layer_scale.max() <= 0.3
    assert 0.75 <= module.gain.min() < module.gain.max() <= 1.25
    assert module.drawn.tolist() == [1.0, 2.0]


def test_calibration_normalises_what_the_layer_sees():
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout()).eval()
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0)) * 100
    calibrate(module, (x,), 0)
    with torch.no_grad():
        y = module(x)
    assert not any(part.training for part in module.modules())
    assert module[1].momentum == 0.1
    assert 0.7 < y.std() < 1.5
    assert y.std(0).max() > 1.1 * y.std(0).min()  # disturbed: not exactly the statistics


def test_calibration_without_norms_runs_nothing():
    calibrate(nn.Linear(4, 3).eval(), (torch.zeros(2, 99),), 0)
