"""Models by name: those of the zoo, ``package.module:callable``, ``file.pt2``, ``file.onnx``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tvmfuse.errors import ImportModelError, OptionError, UnknownNameError
from tvmfuse.frontend import (
    qdq,  # noqa: F401  (registers the operators of quantised programs)
    shapes,
    zoo,
)
from tvmfuse.frontend import weights as weights_io
from tvmfuse.frontend.keywords import ByKeyword, with_keywords
from tvmfuse.frontend.loaded import LoadedReference, Shape, provenance, weights_file
from tvmfuse.frontend.locate import user_frame
from tvmfuse.frontend.trees import keyword_names


def load_model(
    spec: str,
    *,
    batch: int | None = None,
    shape: Shape = None,
    weights: str | None = None,
    seed: int = 0,
) -> LoadedReference:
    """Load the model that ``--model`` names.

    Parameters
    ----------
    spec
        A name of the zoo (:mod:`tvmfuse.frontend.zoo`), ``package.module:callable``,
        ``file.pt2`` or ``file.onnx``.
    batch
        Replaces the first extent of every input.
    shape
        Input shapes, e.g. ``"1,3,224,224"`` or ``"1,128:int64;1,128:int64"``.
    weights
        ``"random"``, ``"pretrained"`` (names of the zoo), a state-dict file, or None: random
        for names of the zoo, as the callable or the file has them otherwise.
    seed
        Of random weights and of drawn inputs.

    Raises
    ------
    UnknownNameError
        No such model; the message lists the nearest names.
    OptionError
        An option does not apply to this kind of model.
    ImportModelError
        The model, its weights or its inputs cannot be made.
    """
    if batch is not None and batch < 1:
        raise OptionError(f"--batch must be positive, got {batch}")
    if spec.endswith(".pt2"):
        return _from_program(Path(spec), batch, shape, weights)
    if spec.endswith(".onnx"):
        return _from_onnx(Path(spec), batch, shape, weights, seed)
    named = zoo.find(spec)
    if named is not None:
        return named(batch=batch, shape=shape, weights=weights, seed=seed)
    if ":" in spec:
        return _from_callable(spec, batch, shape, weights, seed)
    raise UnknownNameError("model", spec, zoo.names(), zoo.FORMS)


def _from_callable(
    spec: str, batch: int | None, shape: Shape, weights: str | None, seed: int
) -> LoadedReference:
    make = _find_callable(spec)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            made = make()
        except Exception as error:
            raise ImportModelError(
                f"{spec} failed with {type(error).__name__}: {error}{user_frame(error)}"
            ) from error
    parts = made if isinstance(made, tuple) and len(made) in (2, 3) else (made, None)
    module, inputs, kwargs = (*parts, None)[:3]
    if not isinstance(module, nn.Module):
        raise ImportModelError(
            f"{spec} returned a {type(module).__name__}; return a torch.nn.Module, a module and "
            "a tuple of example inputs, or these and a dict of keyword inputs"
        )
    if weights == "random":
        weights_io.reset_random(module, seed)
    elif weights == "pretrained":
        raise OptionError("--weights pretrained is for names of the zoo; give a file instead")
    elif weights is not None:
        weights_io.load_state_dict(module, weights_file(weights))
    source = weights or "as the callable made them"
    if kwargs:
        positional = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
        module, inputs = with_keywords(module, tuple(positional), kwargs)
    examples = _example_inputs(spec, inputs, batch, shape, seed, bool(kwargs))
    name = spec.rpartition(":")[2].replace(".", "_")
    return LoadedReference(module.eval(), examples, name, provenance(spec, source, seed))


def _find_callable(spec: str) -> Any:
    module_name, _, attribute = spec.rpartition(":")
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a console script does not have it, python -m does
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ImportModelError(
            f"cannot import {module_name!r} of --model {spec}: {type(error).__name__}: {error}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            choices = [n for n in vars(found) if not n.startswith("_")]
            raise UnknownNameError(f"name in {module_name}", attribute, choices)
        found = getattr(found, part)
    if not callable(found):
        raise ImportModelError(f"{spec} is a {type(found).__name__}, which cannot be called")
    return found


def _example_inputs(
    spec: str, inputs: Any, batch: int | None, shape: Shape, seed: int, in_place: bool
) -> tuple[Any, ...]:
    if shape is not None and in_place:
        return shapes.replaced(inputs, shapes.parse_shapes(shape), batch, seed)
    if shape is not None:
        return shapes.make_inputs(shapes.parse_shapes(shape), batch, seed, like=inputs)
    if inputs is None:
        raise ImportModelError(
            f"{spec} returned no example inputs: give --shape (e.g. --shape 1,3,224,224), or "
            "return (module, example_inputs)"
        )
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    return inputs if batch is None else shapes.rebatch(inputs, batch)


def _from_onnx(
    path: Path, batch: int | None, shape: Shape, weights: str | None, seed: int
) -> LoadedReference:
    if weights is not None:
        raise OptionError(f"--weights cannot change {str(path)!r}: an .onnx file has its own")
    if not path.is_file():
        raise ImportModelError(f"no such file: {str(path)!r}")
    try:
        from tvmfuse.frontend.onnx import load_file
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise ImportModelError(
            f"{str(path)!r} needs the package onnx: pip install 'tvmfuse[onnx]'"
        ) from error
    return load_file(path, batch=batch, shape=shape, seed=seed)


def _from_program(
    path: Path, batch: int | None, shape: Shape, weights: str | None
) -> LoadedReference:
    given = {"--batch": batch, "--shape": shape, "--weights": weights}
    fixed = [option for option, value in given.items() if value is not None]
    if fixed:
        raise OptionError(
            f"{' and '.join(fixed)} cannot change {str(path)!r}: a .pt2 file carries its shapes "
            "and weights; export it again"
        )
    if not path.is_file():
        raise ImportModelError(f"no such file: {str(path)!r}")
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise ImportModelError(
            f"cannot load {str(path)!r} with torch {torch.__version__}: {error}. It must have "
            "been written by torch.export.save"
        ) from error
    if program.example_inputs is None:
        raise ImportModelError(
            f"{str(path)!r} must hold example inputs; write it with torch.export.save as "
            "torch.export.export made it"
        )
    args, kwargs = program.example_inputs
    names = keyword_names(program)
    examples = (*args, *(kwargs[name] for name in names))
    module = ByKeyword(program.module(), names) if names else program.module()
    said = provenance(path.name, "from the file", None)
    return LoadedReference(module, examples, path.stem, said, program)
