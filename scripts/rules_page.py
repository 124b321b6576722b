#!/usr/bin/env python3
"""Write ``docs/rules.md``: every rule, its constraints, and how often it fires in the zoo.

    python scripts/rules_page.py                       # all models of the zoo, minutes
    python scripts/rules_page.py --models resnet50     # count these only, and print the page

Each model is imported with random weights, lowered and planned in a process of its own; nothing
is built. Models that cannot be loaded here are named on the page.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "rules.md"
ZOO = (
    "resnet50", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "inception_v3",
    "googlenet", "densenet121", "squeezenet1_1", "shufflenet_v2_x1_0", "convnext_tiny",
    "vit_b_16", "swin_t", "bert", "gpt2",
)  # fmt: skip
_TOKENS = 32
_HEAD = """\
# Rules of fusion

Written by `python scripts/rules_page.py`; do not edit. A rule is named by its equation; its name \
is what `--no-rule`, `--only` and `tvmfuse explain --why` take, and a category's name stands for \
all of its rules. Rules are tried in the order of this page. *Fires* counts how often a rule took \
part in the plans of {models} models; *seen in* names a model in which it occurs.

{total} rules: {counts}.
"""


def _transformer(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A language model of two layers: more layers only repeat them."""
    import torch
    import transformers

    if name == "bert":
        config = transformers.BertConfig(num_hidden_layers=2, return_dict=False)
    else:
        config = transformers.GPT2Config(n_layer=2, use_cache=False, return_dict=False)
    ids = torch.zeros(1, _TOKENS, dtype=torch.long)
    inputs = (ids, torch.ones_like(ids)) if name == "bert" else (ids,)
    return transformers.AutoModel.from_config(config).eval(), inputs


def fired(name: str) -> tuple[str, dict[str, int], str]:
    """Name, how often each rule fires in it, and why it could not be loaded (empty)."""
    from tvmfuse.frontend.import_model import import_model, import_module
    from tvmfuse.fusion.planner import make_plan
    from tvmfuse.hardware import resolve_target
    from tvmfuse.passes.pipeline import lowering

    hardware = resolve_target("llvm", 1)
    try:
        if name in ("bert", "gpt2"):
            workload = import_module(*_transformer(name), name)
        else:
            workload = import_model(name, weights="random")
    except Exception as error:  # a missing package, or a model that this release refuses
        return name, {}, f"{type(error).__name__}: {str(error).splitlines()[0]}"
    lowered, merges = lowering(workload, hardware)
    plan = make_plan(lowered, hardware)
    counts = Counter(step for group in plan.groups for step in group.steps)
    counts.update(merge.rule.name for merge in merges.chosen)
    return name, dict(counts), ""


def page(rows: list[tuple[str, dict[str, int], str]]) -> str:
    """The text of the page from what :func:`fired` found."""
    from tvmfuse.fusion.rules import RULES

    found = [row for row in rows if not row[2]]
    total: Counter[str] = Counter()
    models: Counter[str] = Counter()
    for _, counts, _ in found:
        total.update(counts)
        models.update(counts.keys())
    sizes = {category: len(rules) for category, rules in RULES.items()}
    lines = [
        _HEAD.format(
            models=len(found),
            total=sum(sizes.values()),
            counts=", ".join(f"{n} {category}" for category, n in sizes.items()),
        ),
        f"Models: {', '.join(name for name, _, _ in found)}.",
        *(f"\nNot counted: {name} ({why})." for name, _, why in rows if why),
    ]
    for category, rules in RULES.items():
        lines += [f"\n## {category}\n"]
        if not rules:
            lines.append("None yet.")
            continue
        lines += ["| rule | asks for | fires | in models | seen in |", "|---|---|---:|---:|---|"]
        for rule in rules:
            asks = getattr(rule, "constraints", "see its docstring")
            seen = getattr(rule, "seen_in", "")
            lines.append(
                f"| `{rule.name}` | {asks} | {total[rule.name]} | {models[rule.name]} | {seen} |"
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or print it for a choice of models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=ZOO, help="count in these, and print")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time (default: 1)")
    asked = parser.parse_args()
    rows = []
    context = multiprocessing.get_context("spawn")
    for number in range(0, len(names := asked.models or ZOO), asked.jobs):
        # A pool a batch: what one model leaves in memory ends with it.
        with ProcessPoolExecutor(asked.jobs, mp_context=context) as pool:
            rows += pool.map(fired, names[number : number + asked.jobs])
        print(rows[-1][0], rows[-1][2] or "done", file=sys.stderr)
    if asked.models:
        print(page(rows))
    else:
        PAGE.write_text(page(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
