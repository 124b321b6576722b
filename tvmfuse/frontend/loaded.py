"""A loaded model: what every way to name one returns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tvmfuse.errors import ImportModelError

Shape = str | Sequence[int] | None


class LoadedReference(NamedTuple):
    """A model to import: the module, its inputs, and where they come from.

    Parameters
    ----------
    module
        In evaluation mode; where arguments are passed by keyword, in a
        :class:`tvmfuse.frontend.keywords.ByKeyword`.
    example_inputs
        Its arguments, all by position.
    name
        Short name for folders and reports.
    provenance
        Plain data: ``model``, ``weights``, ``torch`` and so on.
    program
        The ``torch.export.ExportedProgram`` when the model was loaded from one.
    """

    module: nn.Module
    example_inputs: tuple[Any, ...]
    name: str
    provenance: dict[str, Any]
    program: Any = None


def weights_file(text: str) -> Path:
    """The path of ``--weights``; raises ImportModelError if it is no file."""
    path = Path(text)
    if not path.is_file():
        raise ImportModelError(
            f"--weights {text!r} is no file; give a state dict saved by torch.save, 'random' or "
            "'pretrained'"
        )
    return path


def provenance(model: str, source: str, seed: int | None, **versions: str) -> dict[str, Any]:
    """Where model and weights come from, as plain data."""
    said = f"random, seed {seed}" if source == "random" else source
    return {"model": model, "weights": said, "torch": torch.__version__, **versions}
