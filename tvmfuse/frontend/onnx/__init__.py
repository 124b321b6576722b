"""ONNX models, as PyTorch modules.

Why not by Relax's ONNX frontend: fusion, refusals by place, float64 references and layer taps all
work on exported PyTorch programs, and Relax's importer knows neither LSTM nor GRU nor integer
convolutions. So a graph becomes a ``torch.nn.Module`` (:mod:`.planner` makes it, :mod:`.module`
is it, ``operators/`` says each ONNX operator in PyTorch), and goes the way of every other model.
What keeps it honest is a truth that is not PyTorch's: the node tests of the ``onnx`` package with
their own expected outputs (``scripts/onnx_coverage.py``).
"""

from tvmfuse.frontend.onnx.load import load_file
from tvmfuse.frontend.onnx.planner import module_of

__all__ = ["load_file", "module_of"]
