"""``torch.cond``: branches are compiled, and the choice is made between compiled parts."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import tvmfuse
from tvmfuse.errors import ImportModelError, InputError, UnsupportedOperatorError

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """A forward function with three layers."""

    def __init__(self, forward):
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("flag", torch.tensor(False))
        self.function = forward

    def forward(self, *inputs):
        return self.function(self, *inputs)


def by_sum(m, x):
    """Weights in both branches."""
    h = m.a(x)
    y = torch.cond(h.sum() > 0, lambda t: torch.relu(m.b(t)) + 1, lambda t: m.c(t).tanh(), (h,))
    return y.sigmoid()


def several(m, x):
    """Several results, a tuple of operands, one result that is an operand, one that is unused."""

    def true(t, u):
        return t + m.b(u), u.clone(), t * 3

    def false(t, u):
        return t.clone(), u * 2 - t, t * 4

    one, other, _ = torch.cond(x.mean() > 0, true, false, (m.a(x), x))
    return {"one": one.relu(), "other": other}


def nested(m, x):
    def true(t):
        return torch.cond(
            t[0, 0] > 0, lambda u: torch.softmax(m.b(u), -1), lambda u: m.c(u) - 1, (t * 2,)
        )

    return torch.cond(x.sum() > 0, true, lambda t: torch.exp(-t * t), (x,)).sum(-1)


def chained(m, x):
    """The second predicate depends on the first choice."""
    h = torch.cond(x.sum() > 0, lambda t: m.a(t), lambda t: t - 1, (x,))
    return torch.cond(h.sum() > 0, lambda t: m.b(t), lambda t: t.relu(), (h,))


def constants(m, x):
    """A branch that only gives numbers, without an operand."""
    return x + torch.cond(x.sum() > 0, lambda: torch.ones(8) * 2, lambda: m.a.bias * 3, ())


def decided(m, x):
    """The predicate is a buffer."""
    return torch.cond(m.flag, lambda t: m.a(t), lambda t: m.b(t) + 5, (x,)).relu()


def given(m, flag, x):
    """The predicate is an argument."""
    return torch.cond(flag, lambda t: m.a(t), lambda t: t.sin(), (x,))


def compiled(forward, *inputs, **options):
    module = Model(forward).eval()
    return module, tvmfuse.compile(module, inputs, trials=0, no_log=True, **options)


def check(module, model, *inputs):
    with torch.no_grad():
        want = module(*inputs)
    got = model(*inputs)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def summed():
    return compiled(by_sum, X)


def test_both_branches(summed):
    for scale in (1, -1, 5, -5):
        check(*summed, X * scale)


def test_the_report_says_where_the_borders_are(summed):
    report = summed[1].report
    rows = {p["part"]: p for p in report["parts"]}
    assert [p["runs_in"] for p in report["parts"]] == ["tvmfuse", "a choice", *["tvmfuse"] * 3]
    assert list(rows) == ["0", "1", "1/true/0", "1/false/0", "2"]
    assert "chooses a branch" in rows["1"]["why"][0] and "test_choice.py" in rows["1"]["why"][0]
    taken = [rows[f"1/{side}/0"]["ms"] is not None for side in ("true", "false")]
    assert sorted(taken) == [False, True]
    assert report["verify"]["passed"] and report["eager_ms"] == 0


def test_what_is_in_a_branch_is_fused(summed):
    rows = {p["part"]: p for p in summed[1].report["parts"]}
    assert rows["1/true/0"]["kernels"] == rows["1/false/0"]["kernels"] == 1
    assert rows["1/true/0"]["operators"] == 3


def test_it_serves_without_pytorch(summed, tmp_path):
    module, model = summed
    folder = model.save(tmp_path / "artifact")
    np.save(tmp_path / "x.npy", X.numpy())
    code = (
        "import sys, numpy as np\n"
        "sys.modules['torch'] = None\n"
        "import tvmfuse\n"
        f"model = tvmfuse.load({str(folder)!r})\n"
        f"x = np.load({str(tmp_path / 'x.npy')!r})\n"
        f"np.savez({str(tmp_path / 'y.npz')!r}, model(x), model(-x))\n"
        "assert 'tvm' not in sys.modules\n"
        "print(model)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "choice" in said.stdout and "if false" in said.stdout
    got = np.load(tmp_path / "y.npz")
    with torch.no_grad():
        np.testing.assert_allclose(got["arr_0"], module(X), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(got["arr_1"], module(-X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("forward", [several, nested, chained, constants, decided])
def test_forms(forward):
    module, model = compiled(forward, X)
    for inputs in (X, -X, X.abs(), X.abs() * torch.tensor([-1.0] + [1.0] * 7)):
        check(module, model, inputs)


def test_only_the_branch_of_a_constant_is_compiled():
    _, model = compiled(decided, X)
    assert not any("/false/" in p["part"] for p in model.report["parts"])


def test_an_argument_decides():
    module, model = compiled(given, torch.tensor(True), X)
    for flag in (True, False):
        check(module, model, torch.tensor(flag), X)
    y = model(np.array(False), X.numpy())
    np.testing.assert_allclose(y, np.sin(X.numpy()), rtol=1e-6, atol=1e-6)


def test_results_are_the_callers_own():
    """An operand that comes back is no view of the caller's array, nor of another result."""

    def forward(m, x):
        y, z = torch.cond(
            x.sum() > 1e9, lambda t: (t + 1, t + 2), lambda t: (t.clone(), t.clone()), (x,)
        )
        return y, z

    _, model = compiled(forward, X)
    for given in (X.clone(), X.numpy().copy()):
        y, z = model(given)
        y[0, 0], z[0, 1] = 7.0, 8.0
        assert given[0, 0] != 7.0 and z[0, 0] != 7.0 and y[0, 1] != 8.0


def refused(m, x):
    return torch.cond(
        x.sum() > 0, lambda t: torch.linalg.svdvals(t).sum() + m.a(t), lambda t: m.b(t), (x,)
    )


def test_a_refused_operator_in_a_branch_is_named():
    with pytest.raises(
        UnsupportedOperatorError, match=r"(?s)_linalg_svd.*test_choice\.py.*svdvals"
    ):
        compiled(refused, X)


def test_with_fallback_pytorch_runs_it_inside_the_branch():
    module, model = compiled(refused, X, fallback="eager")
    check(module, model, X)
    check(module, model, -X)
    kinds = {p["part"]: p["runs_in"] for p in model.report["parts"]}
    assert "PyTorch" in kinds.values()
    assert all("/true/" in name for name, kind in kinds.items() if kind == "PyTorch")


def test_an_operand_that_is_returned_as_it_is():
    """PyTorch refuses it in eager mode too; the message says what to write."""
    with pytest.raises(ImportModelError, match=r"\.clone\(\)"):
        compiled(lambda m, x: torch.cond(x.sum() > 0, lambda t: t, lambda t: t + 1, (x,)), X)


def test_assertions_in_a_branch():
    def forward(m, x):
        def true(t):
            torch._assert_async((t < 5).all(), "below 5")
            return m.a(t)

        return torch.cond(x.sum() > 0, true, lambda t: t - 1, (x,))

    module, model = compiled(forward, X.abs().clamp(max=4))
    check(module, model, X.abs().clamp(max=4))
    with pytest.raises(InputError, match="below 5"):
        model(X.abs() + 5)
    check(module, model, -X.abs() * 100)


def test_state_is_refused():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count.add_(1)
            return torch.cond(self.count > 1, lambda t: t + 1, lambda t: t - 1, (x,))

    with pytest.raises(ImportModelError, match="'count'"):
        tvmfuse.compile(Counter().eval(), X, trials=0)


def test_command_line(tmp_path, monkeypatch, capsys):
    from tvmfuse.cli import main

    monkeypatch.setitem(sys.modules, "choice_model", sys.modules[__name__])
    command = ["compile", "--model", "choice_model:summed_model", "--trials", "0", "--no-log"]
    assert main([*command, "--output", str(tmp_path / "out")]) == 0
    assert "a value chooses a branch" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "report.json").read_text())["verify"]["passed"]
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert main(["explain", "choice_model:summed_model"]) == 1
    assert "compiled in parts" in capsys.readouterr().err


def summed_model():
    return Model(by_sum).eval(), (X,)
