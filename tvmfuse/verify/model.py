"""Model level: the outputs against eager, on the example and on edge inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tvmfuse.signature import Signature, flatten
from tvmfuse.verify.compare import as_tensor, compare, copies
from tvmfuse.verify.inputs import edge_inputs, overflows
from tvmfuse.verify.reference import eager, exact_reference
from tvmfuse.verify.report import Comparison
from tvmfuse.workload import Workload


def check_model(
    model: Callable[..., Any], workload: Workload, seed: int
) -> tuple[dict[str, Comparison], str]:
    """Compare the outputs on every kind of input; also returns what the reference was."""
    exact, said = exact_reference(workload)
    kinds: dict[str, Comparison] = {}
    first: tuple[tuple[Any, ...], list[Any], list[torch.Tensor]] | None = None
    for kind, inputs in edge_inputs(workload.example_inputs, seed).items():
        try:
            with torch.no_grad():
                plain = eager(workload.signature, workload.reference, inputs)
        except Exception as error:  # any kind: the module is the user's
            if kind == "example":
                raise
            why = f"not compared: eager itself raises {type(error).__name__} for it"
            kinds[kind] = Comparison(True, note=why)
            continue
        told = overflows(kind, workload.program)
        try:
            returned = flatten(workload.signature.output_tree, model(*copies(inputs)))
        except Exception as error:  # an operator that PyTorch runs, on sums that overflowed
            if not told:
                raise
            why = f"not compared: sums overflow, and then it raises {type(error).__name__}"
            kinds[kind] = Comparison(True, note=why)
            continue
        got = [as_tensor(leaf) for leaf in returned]
        if first is None:
            first = (inputs, returned, [leaf.clone() for leaf in got])
        kinds[kind] = compare(got, plain, exact(inputs) or plain, told)
    assert first is not None
    kinds["repeated"] = _repeated(model, workload.signature, *first)
    return kinds, said


def _repeated(
    model: Callable[..., Any],
    signature: Signature,
    inputs: tuple[Any, ...],
    returned: list[Any],
    kept_copies: list[torch.Tensor],
) -> Comparison:
    """Call again: no state may be left from other calls, and no returned buffer be reused."""
    kept = [as_tensor(leaf) for leaf in returned]
    if not all(torch.equal(*_nan_free(a, b)) for a, b in zip(kept, kept_copies, strict=True)):
        return Comparison(False, reason="a later call overwrote an output that was returned")
    leaves = flatten(signature.output_tree, model(*copies(inputs)))
    return compare([as_tensor(leaf) for leaf in leaves], kept_copies, kept_copies)


def _nan_free(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (one.nan_to_num(), other.nan_to_num()) if one.is_floating_point() else (one, other)
