#!/usr/bin/env python3
"""Write ``docs/rules.md``: every rule, its constraints, and how often it fires in the zoo.

    python scripts/rules_page.py                       # all models of the zoo, minutes
    python scripts/rules_page.py --models resnet50     # count these again, keep the others

Each model is imported with random weights, lowered and planned in a process of its own; nothing
is built. The counts lie in ``docs/rules_zoo.json``, from which the page is written after every
model: an interrupted run loses nothing. Models that were not counted are named on the page.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, COUNTS = DOCS / "rules.md", DOCS / "rules_zoo.json"
ZOO = (
    "resnet50", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "inception_v3",
    "googlenet", "densenet121", "squeezenet1_1", "shufflenet_v2_x1_0", "convnext_tiny",
    "vit_b_16", "swin_t", "bert", "gpt2", "yolov5s", "dlrm",
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
    from tvmfuse.fusion.rules.diagonal import DIAGONAL
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
    counts.update({rule.name: rule.fired(plan) for rule in DIAGONAL if rule.fired(plan)})
    return name, dict(counts), ""


def page(known: dict[str, dict[str, int]]) -> str:
    """The text of the page from counts by model."""
    from tvmfuse.fusion.rules import RULES

    found = [name for name in ZOO if name in known]
    missing = [name for name in ZOO if name not in known]
    total: Counter[str] = Counter()
    models: Counter[str] = Counter()
    for name in found:
        total.update(known[name])
        models.update(known[name].keys())
    sizes = {category: len(rules) for category, rules in RULES.items()}
    lines = [
        _HEAD.format(
            models=len(found),
            total=sum(sizes.values()),
            counts=", ".join(f"{n} {category}" for category, n in sizes.items()),
        ),
        f"Models: {', '.join(found)}.",
        *([f"\nNot counted: {', '.join(missing)}."] if missing else []),
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
    """Count, and write the page after every model; exit code 1 when a model cannot be loaded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", choices=ZOO, help="count these (default: all)")
    asked = parser.parse_args()
    known = json.loads(COUNTS.read_text(encoding="utf-8")) if COUNTS.is_file() else {}
    context = multiprocessing.get_context("spawn")
    failed = False
    for name in ZOO if asked.models is None else asked.models:
        with ProcessPoolExecutor(1, mp_context=context) as pool:  # its memory ends with it
            _, counts, why = pool.submit(fired, name).result()
        failed = failed or bool(why)
        print(name, why or "done", file=sys.stderr, flush=True)
        if not why:
            known[name] = dict(sorted(counts.items()))
            text = json.dumps(known, indent=1, ensure_ascii=False, sort_keys=True)
            COUNTS.write_text(text + "\n", encoding="utf-8")
            PAGE.write_text(page(known), encoding="utf-8")
    if asked.models == []:
        PAGE.write_text(page(known), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
