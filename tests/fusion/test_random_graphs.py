"""Random graphs of convolutions, concatenations, slices and sums give eager's numbers.

What is written in place, read where it lies, joined and overwritten meets here in combinations that
nobody thought of.
"""

import random

import pytest
import torch
from torch import nn

from tvmfuse.build import build
from tvmfuse.choose import choose_kernels
from tvmfuse.frontend.import_model import import_module
from tvmfuse.fusion.planner import make_plan
from tvmfuse.fusion.rules.selection import select_rules
from tvmfuse.hardware import resolve_target
from tvmfuse.passes import plan_memory
from tvmfuse.passes.pipeline import fuse, lowering
from tvmfuse.passes.specialize import group_kernels
from tvmfuse.runtime import load

HARDWARE = resolve_target("llvm", 2)
CHANNELS, SIDE = 6, 8
KINDS = (
    "conv1", "conv3", "conv1", "cat", "cat", "rows", "relu", "silu", "scale", "add", "pool",
    "slice",
)  # fmt: skip


class Graph(nn.Module):
    """Values by number: what makes each, of which others."""

    def __init__(self, seed):
        super().__init__()
        self.random, self.convs = random.Random(seed), nn.ModuleList()
        self.steps, self.shapes = [], [(CHANNELS, SIDE)]  # channels and rows; columns are SIDE
        for _ in range(self.random.randint(6, 14)):
            self.add(self.random.choice(KINDS), self.random.choice(range(len(self.shapes))[-5:]))
        self.read = {n for _, _, operands in self.steps for n in operands}

    def add(self, kind, source):
        """Append a step unless the values so far do not allow it."""
        channels, rows = self.shapes[source]
        known, operands, what = self.shapes, (source,), None
        if kind.startswith("conv"):
            what, size = len(self.convs), int(kind[-1])
            channels_out = self.random.choice([4, 5, 8, 16])
            self.convs.append(nn.Conv2d(channels, channels_out, size, padding=size // 2))
            channels = channels_out
        elif kind in ("cat", "rows", "add"):
            axis = {"cat": 1, "rows": 0, "add": None}[kind]
            alike = [
                n for n, shape in enumerate(known)
                if (axis is None and shape == known[source] and n != source)
                or (axis is not None and shape[axis] == known[source][axis])
            ]  # fmt: skip
            if len(alike) < 2 or (axis == 0 and rows > 16) or (axis == 1 and channels > 32):
                return
            operands = tuple(self.random.sample(alike, 2))
            if kind == "cat":
                channels = sum(known[n][0] for n in operands)
            elif kind == "rows":
                rows = sum(known[n][1] for n in operands)
        elif kind == "slice":
            begin = self.random.randint(0, channels // 2)
            what = begin, self.random.randint(begin + 1, channels)
            channels = what[1] - begin
        self.steps.append((kind, what, operands))
        self.shapes.append((channels, rows))

    def forward(self, x):
        values = [x]
        for kind, what, operands in self.steps:
            first, *rest = (values[n] for n in operands)
            values.append({
                "conv1": lambda v, w, _: self.convs[w](v),
                "conv3": lambda v, w, _: self.convs[w](v),
                "cat": lambda v, w, others: torch.cat([v, *others], 1),
                "rows": lambda v, w, others: torch.cat([v, *others], 2),
                "relu": lambda v, w, _: torch.relu(v),
                "silu": lambda v, w, _: nn.functional.silu(v),
                "scale": lambda v, w, _: v * 0.5,
                "add": lambda v, w, others: v + others[0],
                "pool": lambda v, w, _: torch.max_pool2d(v, 3, 1, 1),
                "slice": lambda v, w, _: v[:, w[0] : w[1]],
            }[kind](first, what, rest))  # fmt: skip
        return tuple(
            v.amax((2, 3)) if n % 2 else v for n, v in enumerate(values) if n and n not in self.read
        )


def built(module, x, folder):
    rules = select_rules()
    low, _ = lowering(import_module(module, (x,)), HARDWARE, rules.merging)
    plan = make_plan(low, HARDWARE, rules.vertical, rules.off, rules.diagonal)
    fused = fuse(low, plan)
    groups = group_kernels(fused.module, HARDWARE)
    build(fused, groups, choose_kernels(groups, None, HARDWARE), HARDWARE).save(folder, {})
    return load(folder, threads=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 7, 11, 13, 19, 23, 63, 71])
def test_numbers(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_memory, "_WORTH_BYTES", 1 if seed % 2 else 1 << 20)
    torch.manual_seed(seed)
    module, x = Graph(seed).eval(), torch.randn(1 + seed % 2, CHANNELS, SIDE, SIDE)
    model = built(module, x, tmp_path / "artifact")
    given = [x, x.flip(3), x * 2]
    results = [model(one) for one in given]  # compared when all are there
    with torch.no_grad():
        for one, got in zip(given, results, strict=True):
            for mine, want in zip(got, module(one), strict=True):
                torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-4)
