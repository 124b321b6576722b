"""Models that no permissively licensed package has: YOLOv5 and a recommender."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn

from tvmfuse.errors import OptionError
from tvmfuse.frontend import shapes
from tvmfuse.frontend.loaded import LoadedReference, Shape, provenance
from tvmfuse.frontend.zoo.dlrm import Recommender
from tvmfuse.frontend.zoo.randomness import CALIBRATION_BATCH, build, fill
from tvmfuse.frontend.zoo.yolov5 import MULTIPLES, Yolov5

_YOLO_SIDE = 640
_BAG = "1,8:int64;1,8:int64;1,8:int64;1,8:int64"  # eight ids in each of four bags


def _makers() -> dict[str, tuple[Callable[[], nn.Module], str]]:
    """Name to constructor and shapes of the inputs."""
    side = f"1,3,{_YOLO_SIDE},{_YOLO_SIDE}"
    found: dict[str, tuple[Callable[[], nn.Module], str]] = {
        f"yolov5{size}": (functools.partial(Yolov5, size), side) for size in MULTIPLES
    }
    return {**found, "dlrm": (Recommender, f"1,13;{_BAG}")}


def names() -> tuple[str, ...]:
    """Names of the models of this package."""
    return tuple(_makers())


def load(
    name: str, *, batch: int | None, shape: Shape, weights: str | None, seed: int
) -> LoadedReference:
    """Load a model; parameters and errors as :func:`tvmfuse.frontend.models.load_model`."""
    source = weights or "random"
    if source == "pretrained":
        raise OptionError(f"{name} has no pretrained weights here; give a state dict's path")
    make, usual = _makers()[name]
    module = build(make, seed)
    extents = shapes.parse_shapes(shape or usual)
    fill(module, source, shapes.make_inputs(extents, CALIBRATION_BATCH, seed), seed)
    inputs: tuple[torch.Tensor, ...] = shapes.make_inputs(extents, batch, seed)
    return LoadedReference(module, inputs, name, provenance(name, source, seed))
