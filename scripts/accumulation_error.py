"""Errors of normalisations under three lowerings, against float64.

``stock`` is TVM's own lowering, ``plain`` the default of this package, ``compensated`` what
``--accumulation compensated`` takes. The error is the largest absolute one, divided by the largest
magnitude of the float64 result. Inputs are float32 numbers, the same for all.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
import tvm
from torch import nn
from tvm import relax

from tvmfuse.frontend.import_model import import_module
from tvmfuse.passes import lower_compensated, lower_moments, lower_numerics
from tvmfuse.passes.name_variables import NameVariables
from tvmfuse.report.tables import format_table

PLAIN = {**lower_numerics.legalize_map(), **lower_moments.legalize_map()}
TABLES = {"stock": {}, "plain": PLAIN, "compensated": {**PLAIN, **lower_compensated.legalize_map()}}


class Mean(nn.Module):
    """Mean of each row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mean over the last axis."""
        return x.mean(-1)


def cases() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Module and input by what is hard about it."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    outlier = drawn(4, 4096) * 10
    outlier[:, 0] = 8e4  # what the plain lowering shifts by
    return {
        "layer norm, 4096 values near 0": (nn.LayerNorm(4096), drawn(4, 4096)),
        "layer norm, 4096 values near 80000": (nn.LayerNorm(4096), drawn(4, 4096) + 8e4),
        "layer norm, the first value an outlier": (nn.LayerNorm(4096), outlier),
        "group norm, values near 80000": (nn.GroupNorm(2, 8), drawn(2, 8, 32, 32) + 8e4),
        "mean of a million values": (Mean(), drawn(1, 1 << 20).abs()),
        "softmax of a million values": (nn.Softmax(-1), drawn(1, 1 << 20)),
    }


def error(module: nn.Module, x: torch.Tensor, table: dict[str, Any]) -> float:
    """Largest error of one lowering."""
    imported = NameVariables()(
        relax.transform.CanonicalizeBindings()(import_module(module.eval(), (x,)).module)
    )
    lowered = relax.transform.LegalizeOps(table)(imported)
    machine = relax.VirtualMachine(tvm.compile(lowered, target="llvm"), tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(x.numpy()))[0].numpy()
    with torch.no_grad():
        exact = module.double()(x.double()).numpy()
    module.float()
    return float(np.abs(got - exact).max() / np.abs(exact).max())


def main() -> None:
    """Print one row a case."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    rows = [
        {"case": name, **{how: f"{error(*case, table):.1e}" for how, table in TABLES.items()}}
        for name, case in cases().items()
    ]
    print(format_table(rows))


if __name__ == "__main__":
    main()
