"""Verify a model in parts: the whole against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tvmfuse.fallback.model import SegmentedModel
from tvmfuse.frontend.loaded import LoadedReference
from tvmfuse.frontend.segments import Split
from tvmfuse.verify import Metric, VerifyReport, verify
from tvmfuse.workload import Workload


def verify_parts(
    model: SegmentedModel,
    loaded: LoadedReference,
    found: Split,
    seed: int,
    metric: Metric | None = None,
) -> VerifyReport:
    """Compare a model in parts with eager; what the program draws is drawn from one seed."""
    workload = Workload(
        loaded.name, None, found.signature, _Seeded(loaded.module, found.draws),
        loaded.example_inputs, loaded.provenance,
    )  # fmt: skip
    return verify(_seeded(model), workload, seed, metric=metric)


class _Seeded(torch.nn.Module):
    """The reference; every call draws the same random numbers.

    ``draws`` says that it does draw. There is no float64 reference then: PyTorch draws other
    numbers in that type.
    """

    def __init__(self, module: torch.nn.Module, draws: bool) -> None:
        super().__init__()
        self.module, self.draws = module, draws

    def double(self) -> _Seeded:
        """Refuse where the numbers would be others."""
        if self.draws:
            raise TypeError("random numbers of float64 are not those of float32")
        return super().double()

    def forward(self, *inputs: Any) -> Any:
        """Seed and call."""
        torch.manual_seed(0)
        return self.module(*inputs)


def _seeded(model: SegmentedModel) -> Callable[..., Any]:
    """The same for the model in parts: its random operators run in PyTorch, in the same order."""

    def call(*args: Any, **kwargs: Any) -> Any:
        torch.manual_seed(0)
        return model(*args, **kwargs)

    return call
