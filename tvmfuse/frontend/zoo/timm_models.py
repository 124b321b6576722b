"""``timm:NAME``: PyTorch Image Models."""

from __future__ import annotations

from torch import nn

from tvmfuse.errors import ImportModelError, UnknownNameError
from tvmfuse.frontend import shapes
from tvmfuse.frontend.loaded import LoadedReference, Shape, provenance
from tvmfuse.frontend.zoo.randomness import CALIBRATION_BATCH, build, fill


def load(
    name: str, *, batch: int | None, shape: Shape, weights: str | None, seed: int
) -> LoadedReference:
    """Load a model; parameters and errors as :func:`tvmfuse.frontend.models.load_model`."""
    try:
        import timm
    except ImportError as error:
        raise ImportModelError(
            f"--model timm:{name} needs the package timm, which cannot be imported ({error}); "
            "pip install timm"
        ) from error
    if not timm.is_model(name):
        raise UnknownNameError("timm model", name, timm.list_models())
    source = weights or "random"

    def make() -> nn.Module:
        try:
            model: nn.Module = timm.create_model(
                name, pretrained=source == "pretrained", exportable=True
            )
        except Exception as error:  # the hub client raises many kinds
            raise ImportModelError(
                f"timm cannot make {name!r}: {type(error).__name__}: {error}. Give a downloaded "
                "file with --weights PATH, or use --weights random"
            ) from error
        return model

    module = build(make, seed)
    size = timm.data.resolve_model_data_config(module)["input_size"]
    extents = shapes.parse_shapes(shape or (1, *size))
    fill(module, source, shapes.make_inputs(extents, CALIBRATION_BATCH, seed), seed)
    inputs = shapes.make_inputs(extents, batch, seed)
    said = provenance(f"timm:{name}", source, seed, timm=timm.__version__)
    return LoadedReference(module, inputs, name, said)
