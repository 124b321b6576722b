"""Post-training quantisation: a float32 program becomes one with uint8 tensors and int8 weights.

PT2E (torchao) observes tensors while calibration batches run and writes the ranges into the
program as quantise and dequantise; what that program computes is the reference that the compiled
model has to agree with. How far it is off the float32 model is said beside it.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from tvmfuse.errors import CalibrationError, OptionError
from tvmfuse.frontend.loaded import LoadedReference
from tvmfuse.frontend.qdq import quantises

RANDOM = "random"
_RANDOM_BATCHES = 8

Batch = tuple[Any, ...]


class Quantised(NamedTuple):
    """A quantised program.

    Parameters
    ----------
    module
        It as a module, PyTorch's to run.
    program
        ``torch.export.ExportedProgram`` of it.
    account
        For the report: observer, calibration, layers, and the error against float32.
    """

    module: Any
    program: Any
    account: dict[str, Any]


def load_calibration(spec: Any) -> Callable[[], Iterable[Any]] | None:
    """What ``--calibrate`` names: ``module:function``, a function, or None for ``random``.

    Raises
    ------
    OptionError
        There is no such function.
    """
    if spec == RANDOM:
        return None
    if callable(spec):
        return spec  # type: ignore[no-any-return]
    module, colon, name = str(spec).partition(":")
    if not colon:
        raise OptionError(f"--calibrate {spec!r} is neither module:function nor 'random'")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"--calibrate {spec}: {error}") from error
    if not callable(found):
        raise OptionError(f"--calibrate {spec} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def quantised_reference(
    loaded: LoadedReference, calibrate: Any, observer: str, seed: int
) -> LoadedReference:
    """A loaded model with the quantised one in its place; errors as for :func:`quantise`.

    Parameters
    ----------
    loaded
        With its program.
    calibrate
        As :func:`load_calibration` takes it.
    observer, seed
        As :func:`quantise` takes them.
    """
    if quantises(loaded.program):
        raise OptionError(
            f"{loaded.name} is quantised already: compile it without --dtype int8, and its own "
            "scales are kept"
        )
    batches = load_calibration(calibrate)
    made = quantise(loaded.program, loaded.example_inputs, batches, observer, seed)
    spec = calibrate if isinstance(calibrate, str) else "a function"
    account = {"calibrate": spec, "seed": seed, **made.account}
    return loaded._replace(
        module=made.module,
        program=made.program,
        provenance={**loaded.provenance, "quantization": account},
    )


def quantise(
    program: Any,
    example_inputs: Batch,
    batches: Callable[[], Iterable[Any]] | None,
    observer: str = "minmax",
    seed: int = 0,
) -> Quantised:
    """Observe, and write the ranges into the program.

    Parameters
    ----------
    program
        A ``torch.export.ExportedProgram`` of float32.
    example_inputs
        Its arguments; every batch has their structure, shapes and types.
    batches
        Gives the batches: tuples of arguments, or single tensors. None draws random numbers, of
        which nobody should expect the ranges that data has.
    observer
        ``"minmax"`` or ``"percentile"``.

    Raises
    ------
    OptionError
        torchao is not installed.
    CalibrationError
        No batch came, one does not fit or holds NaN or infinity, or nothing can be quantised.
    """
    pt2e = _torchao()
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = pt2e.Quantizer(observer)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(program.module(), quantizer)
        if not quantizer.quantised:
            raise CalibrationError(
                "no layer of the model can be quantised: "
                + ("; ".join(f"{n}: {why}" for n, why in quantizer.kept.items()) or "it has none")
            )
        data = _random(example_inputs, seed) if batches is None else batches()
        count = _calibrate(prepared, example_inputs, data)
        constant = _check_ranges(prepared)
        module = convert_pt2e(prepared, fold_quantize=True)
        exported = torch.export.export(module, example_inputs, strict=False)
        error = _against_float(program.module(), module, example_inputs)
    account = {
        "observer": observer,
        "calibration": "random numbers" if batches is None else "given",
        "batches": count,
        "layers": len(quantizer.quantised),
        "kept_in_float32": dict(quantizer.kept),
        "constant": constant,
        "error_against_float32": error,
    }
    return Quantised(module, exported, account)


def _torchao() -> Any:
    level = logging.getLogger("torch").level
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # of an Enum of torchao
    try:
        return importlib.import_module("tvmfuse.precision.pt2e")
    except ImportError as error:
        raise OptionError(
            f"--dtype int8 quantises with torchao, which cannot be imported: {error}; "
            "pip install 'tvmfuse[quant]'"
        ) from error
    finally:
        logging.getLogger("torch.utils._pytree").setLevel(level)


def _random(example_inputs: Batch, seed: int) -> Iterator[Batch]:
    """Normal numbers for floats; integers, which may be indices, stay as they are."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(_RANDOM_BATCHES):
        yield pytree.tree_map(
            lambda v: (
                torch.randn(v.shape, generator=generator).to(v.dtype)
                if isinstance(v, torch.Tensor) and v.is_floating_point()
                else v
            ),
            example_inputs,
        )


def _calibrate(prepared: Any, example_inputs: Batch, batches: Iterable[Any]) -> int:
    count = 0
    for count, given in enumerate(batches, start=1):
        batch = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        _check_batch(count, batch, example_inputs)
        prepared(*batch)
    if not count:
        raise CalibrationError("--calibrate gave no batch: without data there are no ranges")
    return count


def _check_batch(number: int, batch: Batch, example_inputs: Batch) -> None:
    have, want = (pytree.tree_flatten(b) for b in (batch, example_inputs))
    if have[1] != want[1]:
        raise CalibrationError(
            f"batch {number} of --calibrate has the structure {have[1]}, the model {want[1]}"
        )
    for place, (one, other) in enumerate(zip(have[0], want[0], strict=True)):
        if not isinstance(other, torch.Tensor):
            continue
        if not isinstance(one, torch.Tensor):
            said = type(one).__name__
            raise CalibrationError(f"batch {number} of --calibrate holds a {said}, not a tensor")
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            raise CalibrationError(
                f"batch {number} of --calibrate: input {place} is {one.dtype} "
                f"{tuple(one.shape)}, the model takes {other.dtype} {tuple(other.shape)}"
            )
        if one.is_floating_point() and not bool(one.isfinite().all()):
            raise CalibrationError(f"batch {number} of --calibrate holds NaN or infinity")


def _check_ranges(prepared: Any) -> list[str]:
    """Refuse ranges that are not finite; the tensors that had one value only, by observer."""
    constant = []
    for name, part in prepared.named_modules():
        low, high = getattr(part, "min_val", None), getattr(part, "max_val", None)
        if low is None or high is None or low.numel() == 0:
            continue
        node = next((n for n in prepared.graph.nodes if n.target == name), None)
        source = str(node.args[0]) if node is not None else name
        if not bool((low.isfinite() & high.isfinite()).all()):
            raise CalibrationError(
                f"{source!r} was NaN or infinite while calibrating, so it has no range"
            )
        if bool((low == high).any()):
            constant.append(source)
    return constant


def _against_float(plain: Any, module: Any, inputs: Batch) -> dict[str, float]:
    """How far the quantised program is off the float32 one, on the example inputs."""
    found = {"max_rel_err": 0.0, "rms_rel_err": 0.0}
    pairs = zip(pytree.tree_leaves(plain(*inputs)), pytree.tree_leaves(module(*inputs)),
                strict=True)  # fmt: skip
    for want, got in pairs:
        if not isinstance(want, torch.Tensor) or not want.is_floating_point() or not want.numel():
            continue
        off, scale = (got.double() - want.double()), want.double()
        largest = max(float(scale.abs().max()), 1e-30)
        spread = max(float(scale.square().mean().sqrt()), 1e-30)
        found["max_rel_err"] = max(found["max_rel_err"], float(off.abs().max()) / largest)
        rms = float(off.square().mean().sqrt()) / spread
        found["rms_rel_err"] = max(found["rms_rel_err"], rms)
    return found
