"""Every ONNX operator in PyTorch, a family a file: ``(call, *inputs) -> output or outputs``."""

from __future__ import annotations

from tvmfuse.frontend.onnx.call import Operator
from tvmfuse.frontend.onnx.operators import (
    elementwise,
    indexing,
    normalization,
    pooling,
    products,
    quantization,
    recurrent,
    reductions,
    regions,
    resizing,
    sequences,
    spectral,
    structure,
)

OPERATORS: dict[str, Operator] = {
    **elementwise.OPERATORS,
    **indexing.OPERATORS,
    **normalization.OPERATORS,
    **pooling.OPERATORS,
    **products.OPERATORS,
    **quantization.OPERATORS,
    **recurrent.OPERATORS,
    **reductions.OPERATORS,
    **regions.OPERATORS,
    **resizing.OPERATORS,
    **sequences.OPERATORS,
    **spectral.OPERATORS,
    **structure.OPERATORS,
}

# The shape of the result depends on values: only possible where all inputs are known.
DATA_DEPENDENT: dict[str, Operator] = indexing.DATA_DEPENDENT

_TEXT = "works on text, which no tensor kernel can"
_RANDOM = "draws random numbers; they would be drawn once at import and frozen"
OUT_OF_SCOPE = {
    **dict.fromkeys(
        ("StringNormalizer", "StringConcat", "StringSplit", "RegexFullMatch", "TfIdfVectorizer"),
        _TEXT,
    ),
    **dict.fromkeys(
        (
            "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
            "Multinomial",
        ),
        _RANDOM,
    ),
    "NonMaxSuppression": (
        "selects as many boxes as the values say, and a compiled model has fixed shapes: export "
        "the detector without it, and select behind the model (torchvision.ops.nms)"
    ),
    "ImageDecoder": "decodes image files, which no tensor kernel can",
}  # fmt: skip
