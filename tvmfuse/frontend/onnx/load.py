"""An ``.onnx`` file: read, checked, and given example inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
import torch

from tvmfuse.errors import ImportModelError, OptionError
from tvmfuse.frontend import shapes
from tvmfuse.frontend.loaded import LoadedReference, Shape, provenance
from tvmfuse.frontend.onnx.planner import module_of
from tvmfuse.frontend.onnx.tensors import element_type

OLDEST_OPSET = 7  # numpy's rules of broadcasting begin there

Extents = tuple[int | str | None, ...]


def load_file(path: Path, *, batch: int | None, shape: Shape, seed: int) -> LoadedReference:
    """Load a model; its extents without a number come from ``batch`` and ``shape``.

    Parameters
    ----------
    path
        The file; external data lies beside it.
    batch
        First extent of every input, where the file leaves it open (1 if left out).
    shape
        A shape for every input, or for every input with open extents.
    seed
        Of the drawn inputs.

    Raises
    ------
    ImportModelError
        The file cannot be read, or a node cannot be imported.
    OptionError
        ``batch`` or ``shape`` contradicts the file.
    """
    model = read(path)
    wanted = _wanted(model, batch, shape)
    drawn = shapes.make_inputs(list(wanted.values()), None, seed)
    try:
        module = module_of(model, dict(zip(wanted, drawn, strict=True)))
    except ImportModelError as error:
        if not isinstance(error.__cause__, IndexError):
            raise
        # A table of few rows, say of the kinds of a token: its first row is always there.
        drawn = tuple(t if t.is_floating_point() else torch.zeros_like(t) for t in drawn)
        module = module_of(model, dict(zip(wanted, drawn, strict=True)))
    said = provenance(path.name, "from the file", None, onnx=onnx.__version__)
    return LoadedReference(module, drawn, path.stem, said)


def read(path: Path) -> onnx.ModelProto:
    """The model of a file, with its weights in memory and its local functions inlined."""
    if not path.is_file():
        raise ImportModelError(f"no such file: {str(path)!r}")
    try:
        model = onnx.load(path)
        if not model.graph.node and not model.graph.output:
            raise ValueError("it holds no graph")
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
    except Exception as error:  # protobuf, files, external data: each has its own kinds
        raise ImportModelError(
            f"cannot load {str(path)!r} with onnx {onnx.__version__}: {error}. It must be a "
            "serialised ONNX model; external data must lie where the file says"
        ) from error
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), None)
    if opset is None or opset < OLDEST_OPSET:
        raise ImportModelError(
            f"{str(path)!r} is of opset {opset}; the oldest one known is {OLDEST_OPSET}. Convert "
            "it: onnx.version_converter.convert_version(model, 17)"
        )
    return model


def open_inputs(model: onnx.ModelProto) -> dict[str, tuple[Extents, torch.dtype]]:
    """Extents (a number, a name or None each) and types of the inputs that are no weights."""
    weights = {i.name for i in model.graph.initializer}
    found: dict[str, tuple[Extents, torch.dtype]] = {}
    for given in model.graph.input:
        if given.name in weights:
            continue
        kind = given.type
        if not kind.HasField("tensor_type"):
            raise ImportModelError(
                f"input {given.name!r} is a {kind.WhichOneof('value') or 'value without a type'}; "
                "only tensors can be passed"
            )
        tensor = kind.tensor_type
        dtype = element_type(tensor.elem_type, f"input {given.name!r}", outside=True)
        if not tensor.HasField("shape"):
            found[given.name] = ((None,), dtype)
            continue
        extents = tuple(
            d.dim_value if d.HasField("dim_value") else (d.dim_param or None)
            for d in tensor.shape.dim
        )
        found[given.name] = (extents, dtype)
    return found


def _wanted(
    model: onnx.ModelProto, batch: int | None, shape: Shape
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    inputs = open_inputs(model)
    given = _shapes_by_name(inputs, shape) if shape is not None else {}
    wanted = {}
    for name, (extents, dtype) in inputs.items():
        told = given.get(name)
        filled = _filled(name, extents, batch) if told is None else told
        if batch is not None and told is not None:
            filled = (batch, *filled[1:])
        _agree(name, extents, filled)
        wanted[name] = (filled, dtype)
    return wanted


def _shapes_by_name(
    inputs: dict[str, tuple[Extents, torch.dtype]], shape: Any
) -> dict[str, tuple[int, ...]]:
    parsed = shapes.parse_shapes(shape)
    open_ones = [n for n, (e, _) in inputs.items() if not all(isinstance(x, int) for x in e)]
    names = list(inputs) if len(parsed) == len(inputs) else open_ones
    if len(parsed) != len(names):
        raise OptionError(
            f"--shape gives {len(parsed)} shape(s); the model has {len(inputs)} input(s): "
            + "; ".join(f"{n} {_text(e)}" for n, (e, _) in inputs.items())
        )
    parts = shape.split(";") if isinstance(shape, str) else [""] * len(parsed)
    for name, (_, dtype), part in zip(names, parsed, parts, strict=True):
        if ":" in part and dtype != inputs[name][1]:
            raise OptionError(f"--shape {part!r}: the file says that {name} is {inputs[name][1]}")
    return {name: extents for name, (extents, _) in zip(names, parsed, strict=True)}


def _filled(name: str, extents: Extents, batch: int | None) -> tuple[int, ...]:
    filled = list(extents)
    if filled and (batch is not None or not isinstance(filled[0], int)):
        filled[0] = batch or 1
    if not all(isinstance(extent, int) for extent in filled):
        raise OptionError(
            f"input {name!r} has the open shape {_text(extents)}: give --shape, with a shape for "
            "each input after ';'"
        )
    return tuple(int(extent) for extent in filled if extent is not None)


def _agree(name: str, extents: Extents, filled: tuple[int, ...]) -> None:
    if extents == (None,):
        return
    pairs = zip(extents, filled, strict=False)
    differ = any(isinstance(said, int) and said != told for said, told in pairs)
    if differ or len(extents) != len(filled):
        raise OptionError(
            f"input {name!r} has the shape {_text(extents)} in the file, not {filled}; only open "
            "extents can be given by --batch and --shape. Export the model again with the wanted "
            "ones"
        )


def _text(extents: Extents) -> str:
    return "(" + ", ".join("?" if e is None else str(e) for e in extents) + ")"
