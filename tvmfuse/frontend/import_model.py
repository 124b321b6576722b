"""The verbs of this package: a model, by name or as a module, becomes a Workload."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from tvmfuse.errors import ImportModelError
from tvmfuse.frontend.keywords import with_keywords
from tvmfuse.frontend.loaded import LoadedReference, Shape
from tvmfuse.frontend.models import load_model
from tvmfuse.frontend.torch_export import converted, export_program
from tvmfuse.frontend.trees import forward_parameters, signature_of
from tvmfuse.signature import OWN_TYPES
from tvmfuse.workload import Workload


def import_model(
    spec: str,
    *,
    batch: int | None = None,
    shape: Shape = None,
    weights: str | None = None,
    seed: int = 0,
) -> Workload:
    """Load the model that ``--model`` names and import it.

    Parameters and errors of loading are those of :func:`tvmfuse.frontend.models.load_model`;
    errors of importing those of :func:`import_module`.
    """
    loaded = load_model(spec, batch=batch, shape=shape, weights=weights, seed=seed)
    return workload_of(loaded)


def import_module(
    module: torch.nn.Module, example_inputs: Any, name: str | None = None, kwargs: Any = None
) -> Workload:
    """Import a module that the caller holds.

    Parameters
    ----------
    module
        In evaluation mode; it stays the reference for verification.
    example_inputs
        Tuple of the positional arguments of its ``forward``: tensors in nested containers, and
        constants. Anything but a tuple or a list is taken as the only argument.
    name
        Short name; the class name in lower case when left out.
    kwargs
        Keyword arguments of its ``forward`` by name.

    Raises
    ------
    ImportModelError
        The module cannot be exported or converted.
    UnsupportedOperatorError
        It uses operators without a faithful converter.
    """
    return workload_of(loaded_module(module, example_inputs, name, kwargs))


def loaded_module(
    module: torch.nn.Module, example_inputs: Any, name: str | None = None, kwargs: Any = None
) -> LoadedReference:
    """A module that the caller holds as a loaded model; arguments as :func:`import_module`."""
    if not isinstance(module, torch.nn.Module):
        raise ImportModelError(f"expected a torch.nn.Module, got a {type(module).__name__}")
    if not isinstance(example_inputs, (tuple, list)):
        example_inputs = (example_inputs,)
    name = name or type(module).__name__.lower()
    provenance = {"model": name, "weights": "as given", "torch": torch.__version__}
    module, inputs = with_keywords(module, tuple(example_inputs), kwargs)
    return LoadedReference(module, inputs, name, provenance)


def workload_of(loaded: LoadedReference, computes: str = OWN_TYPES) -> Workload:
    """Import a loaded model; errors as for :func:`import_module`.

    ``computes`` is that of the signature (`tvmfuse.signature.Signature`).
    """
    program = loaded.program or export_program(loaded.module, loaded.example_inputs)
    found = converted(program)
    signature = signature_of(program, forward_parameters(loaded.module))
    return Workload(
        loaded.name,
        found.module,
        dataclasses.replace(signature, computes=computes),
        loaded.module,
        loaded.example_inputs,
        loaded.provenance,
        program=found.program,
        origins=found.origins,
        states=found.states,
        bounds=found.bounds,
        checks=found.checks,
    )
