"""Programs are cut at what cannot be imported, with as few borders as possible."""

import pytest
import torch
from torch import nn

from tvmfuse.errors import ImportModelError
from tvmfuse.frontend.segments import Choice, split
from tvmfuse.frontend.torch_export import export_program


class Lambda(nn.Module):
    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


X = torch.randn(6, 8)


def cut(function, *inputs, **parts):
    module = Lambda(function, **parts).eval()
    return module, split(export_program(module, inputs), ("inputs",))


def run(found, *inputs):
    """All parts in eager PyTorch, one after another."""
    values = dict(zip(found.inputs, inputs, strict=True))
    for segment in found.segments:
        with torch.no_grad():
            results = segment.module(*(values[n] for n in segment.inputs))
        values.update(zip(segment.outputs, results, strict=True))
    return [values[n] for n in found.outputs]


def kinds(found):
    return ["compiled" if s.compiled else "eager" for s in found.segments]


def test_an_operator_in_the_middle():
    def forward(m, x):
        h = torch.relu(m.a(x))
        return m.b(h + torch.linalg.svdvals(h).sum())

    module, found = cut(forward, X, a=nn.Linear(8, 8), b=nn.Linear(8, 4))
    assert kinds(found) == ["compiled", "eager", "compiled"]
    assert not found.draws
    (reason,) = found.segments[1].reasons
    assert "aten._linalg_svd.default has no converter" in reason and "svdvals(h)" in reason
    with torch.no_grad():
        torch.testing.assert_close(run(found, X)[0], module(X))


def test_branches_share_their_borders():
    """Two refused operators that do not depend on each other are one part."""

    def forward(m, x):
        one, other = torch.relu(x), torch.tanh(x)
        return torch.linalg.svdvals(one) + torch.linalg.svdvals(other).exp()

    module, found = cut(forward, X)
    assert kinds(found) == ["compiled", "eager", "compiled"]
    assert len(found.segments[1].reasons) == 1  # one line of the user's
    torch.testing.assert_close(run(found, X)[0], module(X))


def test_what_begins_refused_has_no_empty_part():
    module, found = cut(lambda m, x: torch.linalg.svdvals(x).relu() * 2, X)
    assert kinds(found) == ["eager", "compiled"]
    torch.testing.assert_close(run(found, X)[0], module(X))


def test_moves_alone_are_not_worth_a_part():
    def forward(m, x):
        h = torch.linalg.svdvals(x.relu())
        h = torch.linalg.svdvals(h.view(2, 3).transpose(0, 1))
        return h * 2

    _, found = cut(forward, X)
    assert kinds(found) == ["compiled", "eager", "compiled"]


def test_shapes_that_depend_on_values():
    def forward(m, x):
        some = torch.masked_select(m.a(x), x > 0)
        return some * 2, (some.sum() + x).relu()

    module, found = cut(forward, X, a=nn.Linear(8, 8))
    assert kinds(found) == ["compiled", "eager", "compiled"]
    assert [s.shape for s in found.signature.outputs] == [(-1,), (6, 8)]
    with torch.no_grad():
        for got, want in zip(run(found, X), module(X), strict=True):
            torch.testing.assert_close(got, want)


def test_random_numbers_are_known():
    _, found = cut(lambda m, x: x.relu() + torch.randn_like(x), X)
    assert found.draws and "draws random numbers" in " ".join(found.segments[0].reasons)


def test_nothing_to_compile():
    with pytest.raises(ImportModelError, match="no part of the model can be compiled"):
        cut(lambda m, x: torch.linalg.svdvals(x), X)


def test_state_is_refused():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count.add_(1)
            return torch.linalg.svdvals(x.relu()) + self.count

    with pytest.raises(ImportModelError, match="'count'"):
        split(export_program(Counter().eval(), (X,)), ("x",))


def test_a_choice_is_a_part_of_its_own():
    def forward(m, flag, x):
        y = torch.cond(flag, lambda t: t.sin() + m.a(t), lambda t: m.a(t) - 1, (x * 2,))
        return y.relu() + 1

    module, found = cut(forward, torch.tensor(True), X, a=nn.Linear(8, 8))
    first, choice, last = found.segments
    assert first.compiled and last.compiled and isinstance(choice, Choice)
    assert choice.predicate == found.inputs[0] and choice.outputs == last.inputs
    for branch, want in zip(choice.branches, (lambda t: t.sin() + module.a(t),
                                              lambda t: module.a(t) - 1), strict=True):  # fmt: skip
        (step,) = branch.steps
        assert step.compiled and branch.inputs == ((step.inputs[0], first.outputs[0]),)
        with torch.no_grad():
            torch.testing.assert_close(step.module(X)[0], want(X))


def test_a_choice_of_which_nothing_can_be_compiled_is_left_to_pytorch():
    def forward(m, flag, x):
        def svd(t):
            return torch.linalg.svdvals(t)

        return torch.cond(flag, svd, svd, (x * 2,)).relu() + 1

    module, found = cut(forward, torch.tensor(True), X)
    assert kinds(found) == ["compiled", "eager", "compiled"]
    torch.testing.assert_close(run(found, torch.tensor(True), X)[0], module(torch.tensor(True), X))


def test_a_branch_that_returns_its_operand_has_no_steps():
    _, found = cut(
        lambda m, flag, x: torch.cond(flag, lambda t: t.clone(), lambda t: t + 1, (x,)),
        torch.tensor(True), X,
    )  # fmt: skip
    (choice,) = found.segments
    assert choice.branches[0].steps == () and len(choice.branches[1].steps) == 1
