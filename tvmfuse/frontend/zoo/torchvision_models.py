"""torchvision: classifiers, segmentation, video, detection and optical flow, by their names there.

Inputs have the size that the library's own weights were trained or validated for.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

from torch import nn

from tvmfuse.errors import ImportModelError
from tvmfuse.frontend import shapes
from tvmfuse.frontend.loaded import LoadedReference, Shape, provenance
from tvmfuse.frontend.zoo.randomness import CALIBRATION_BATCH, build, fill

_RGB = 3
_SIDE = 224  # of models that come without a preset
_FLOW = (360, 480)  # optical flow: torchvision demands multiples of 8
_DETECTION = (320, 320)
_CLIP_LENGTH = 16  # frames of a video, where the weights do not say


@functools.cache
def names() -> tuple[str, ...]:
    """Names of all models but the quantised ones; empty where torchvision is not installed."""
    try:
        import torchvision
    except ImportError:
        return ()
    return tuple(n for n in torchvision.models.list_models() if not n.startswith("quantized_"))


def load(
    name: str, *, batch: int | None, shape: Shape, weights: str | None, seed: int
) -> LoadedReference:
    """Load a model; parameters and errors as :func:`tvmfuse.frontend.models.load_model`."""
    import torchvision

    source = weights or "random"
    extents = shapes.parse_shapes(shape) if shape else _shapes(name)
    inputs = shapes.make_inputs(extents, batch, seed)
    module = build(lambda: _make(name, source), seed)
    fill(module, source, shapes.make_inputs(extents, CALIBRATION_BATCH, seed), seed)
    said = {"torchvision": torchvision.__version__}
    return LoadedReference(module.eval(), inputs, name, provenance(name, source, seed, **said))


def _make(name: str, source: str) -> nn.Module:
    import torchvision

    options: dict[str, Any] = {"weights": "DEFAULT" if source == "pretrained" else None}
    if _kind(name) in ("segmentation", "detection"):
        options["weights_backbone"] = None
    if name.startswith("vit_"):  # takes one size only; that of vit_h_14's weights is not 224
        options["image_size"] = _first(getattr(_preset(name)[0], "crop_size", None), _SIDE)
    with warnings.catch_warnings():
        # torchvision warns that the initialiser of two models may change: seeds cover us.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            return torchvision.models.get_model(name, **options)
        except (OSError, RuntimeError) as error:
            raise ImportModelError(
                f"cannot get the pretrained weights of {name!r}: {error}. Give a downloaded file "
                "with --weights PATH, or use --weights random"
            ) from error


def _kind(name: str) -> str:
    """``segmentation``, ``video``, ``detection``, ``optical_flow`` or, of a classifier, ``""``."""
    import torchvision

    builder = torchvision.models.get_model_builder(name)
    path = str(builder.__module__).split(".")
    kinds = ("segmentation", "video", "detection", "optical_flow")
    return next((k for k in kinds if k in path), "")


def _shapes(name: str) -> list[Any]:
    kind = _kind(name)
    if kind == "optical_flow":
        return shapes.parse_shapes(";".join([f"1,{_RGB},{_FLOW[0]},{_FLOW[1]}"] * 2))
    if kind == "detection":
        return shapes.parse_shapes((1, _RGB, *_DETECTION))
    preset, meta = _preset(name)
    if kind == "segmentation":
        side = _first(getattr(preset, "resize_size", None), _SIDE)
        return shapes.parse_shapes((1, _RGB, side, side))
    side = _first(getattr(preset, "crop_size", None), _SIDE)
    if kind == "video":
        frames = int(meta.get("min_temporal_size", _CLIP_LENGTH))
        return shapes.parse_shapes((1, _RGB, frames, side, side))
    return shapes.parse_shapes((1, _RGB, side, side))


def _preset(name: str) -> tuple[Any, dict[str, Any]]:
    """Transforms and metadata of the library's default weights; nothing is downloaded."""
    import torchvision

    try:
        default = torchvision.models.get_model_weights(name)["DEFAULT"]
    except (KeyError, ValueError):
        return None, {}
    return default.transforms(), dict(default.meta)


def _first(extent: Any, otherwise: int) -> int:
    if extent is None:
        return otherwise
    return int(extent[0]) if isinstance(extent, (list, tuple)) else int(extent)
