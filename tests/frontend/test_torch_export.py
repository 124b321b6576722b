import sys

import pytest
import torch
from torch import nn

from tvmfuse.errors import ImportModelError, UnsupportedOperatorError
from tvmfuse.frontend.torch_export import convert, export_program

tvm = pytest.importorskip("tvm")


class Branching(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # depends on a value
            return x
        return -x


class TwoMissing(nn.Module):
    def forward(self, x):
        a = torch.linalg.svdvals(x)
        return a, torch.linalg.eigvalsh(x)


class Constant(nn.Module):
    def forward(self, x):
        return 3


def operators(module):
    bindings = [b.value for block in module["main"].body.blocks for b in block.bindings]
    return [v.op.name for v in bindings if isinstance(v, tvm.relax.Call)]


def test_main_takes_inputs_only_and_returns_a_tuple_from_dataflow():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)).eval()
    converted = convert(export_program(module, (torch.ones(1, 3, 8, 8),)))
    main = converted["main"]
    assert len(main.params) == 1
    assert isinstance(main.ret_ty, tvm.relax.TupleType)
    assert all(isinstance(b, tvm.relax.DataflowBlock) for b in main.body.blocks)
    assert "relax.nn.batch_norm" in operators(converted)


def test_operators_stay_whole():
    module = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)).eval()
    found = operators(convert(export_program(module, (torch.ones(2, 3, 4),))))
    assert "relax.nn.gelu" in found and "relax.nn.layer_norm" in found
    assert "relax.reshape" not in found  # a decomposed Linear would flatten the batch


def test_training_mode_is_refused():
    with pytest.raises(ImportModelError, match=r"training mode.*eval"):
        export_program(nn.Linear(4, 3), (torch.ones(2, 4),))
    partly = nn.Sequential(nn.Linear(4, 3), nn.Dropout()).eval()
    partly[1].train()
    with pytest.raises(ImportModelError, match=r"training mode \(1\)"):
        export_program(partly, (torch.ones(2, 4),))


def test_untraceable_model_is_located():
    with pytest.raises(ImportModelError, match="cannot trace") as caught:
        export_program(Branching().eval(), (torch.ones(2),))
    assert "test_torch_export.py" in str(caught.value)
    assert "if x.sum() > 0" in str(caught.value)


def test_the_graph_so_far_is_not_printed(capsys):
    class Selecting(nn.Module):
        def forward(self, x):
            print("first\nsecond", file=sys.stderr)
            return x if x[x > 0].numel() == 0 else x + 1

    with pytest.raises(ImportModelError, match="cannot trace"):
        export_program(Selecting().eval(), (torch.ones(2),))
    said = capsys.readouterr().err
    assert "def forward" not in said and said.startswith("first\nsecond\n")


def test_model_that_fails_by_itself_is_told_apart():
    with pytest.raises(ImportModelError, match="fails on its example inputs"):
        export_program(nn.Linear(4, 3).eval(), (torch.ones(2, 5),))


def test_missing_operators_are_listed_together_with_lines():
    program = export_program(TwoMissing().eval(), (torch.ones(3, 3),))
    with pytest.raises(UnsupportedOperatorError, match="has no converter") as caught:
        convert(program)
    message = str(caught.value)
    assert message.startswith("2 operator(s)")
    assert "svdvals(x)" in message and "eigvalsh(x)" in message


def test_no_tensor_output_is_refused():
    program = export_program(Constant().eval(), (torch.ones(1),))
    with pytest.raises(ImportModelError, match="returns no tensor"):
        convert(program)


def test_dynamic_shapes_are_refused():
    batch = torch.export.Dim("batch", min=2, max=8)
    program = torch.export.export(
        nn.Linear(4, 3).eval(), (torch.ones(2, 4),), dynamic_shapes=({0: batch},)
    )
    with pytest.raises(ImportModelError, match="dynamic shape"):
        convert(program)


def test_converter_errors_are_located(monkeypatch):
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    def failing(self, node):
        raise ValueError("no such layout")

    class Flipped(nn.Module):
        def forward(self, x):
            return x.flip(0)

    monkeypatch.setattr(ExportedProgramImporter, "_flip", failing)
    program = export_program(Flipped().eval(), (torch.ones(2),))
    with pytest.raises(ImportModelError, match=r"aten\.flip.*x\.flip\(0\).*no such layout"):
        convert(program)


def test_inputs_that_require_gradients_are_refused():
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(ImportModelError, match=r"input \[0\]\['x'\] requires gradients"):
        export_program(torch.nn.Identity().eval(), ({"x": x},))
