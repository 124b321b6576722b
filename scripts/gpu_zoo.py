"""Compile the zoo for GPUs that need not be here, and list what the kernels take of them.

    python scripts/gpu_zoo.py --json gpu_zoo.json --markdown docs/gpu_zoo.md
    python scripts/gpu_zoo.py --only 'resnet' --targets t4,h200

Each model is imported once, in a process of its own, fused and compiled for every target from
templates alone. Nothing is run and nothing is timed but compiling. With ``--json`` results are kept
as they come, and models that the file already has are not run again.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fusion_table import ZOO
from model_coverage import attempt, one_line, version_of

MODELS = (*ZOO, "resnet18", "vgg11_bn", "regnet_y_400mf", "efficientnet_v2_s")
TARGETS = ("t4", "a100", "h200", "jetson-orin")

FLOAT32 = "float32"
# What the page in halves is of.
HALF_MODELS, HALF_TARGETS = "resnet50$|bert|yolov5s", "t4,a100,h200"
_TENSOR = (
    " *Tensor cores*: share of the operations of convolutions, products and attention in kernels "
    "whose machine code has instructions for them (HMMA)."
)

_CHILD = """
import contextlib, json, warnings

sys.path.insert(0, {folder!r})
warnings.simplefilter("ignore")
with contextlib.redirect_stdout(sys.stderr):
    from gpu_child import answer

    found = answer(sys.argv[1], {targets!r}, {dtype!r})
print(json.dumps({{"outcome": "tried", **found}}))
"""


def main() -> None:
    """Build, print, and write what was asked for."""
    options = _parser().parse_args()
    wanted = re.compile(options.only)
    asked = [name for name in MODELS if wanted.search(name)]
    if not asked:
        sys.exit(f"no model of {', '.join(MODELS)} matches --only {options.only!r}")
    targets = options.targets.split(",")
    code = _CHILD.format(
        folder=str(Path(__file__).resolve().parent), targets=targets, dtype=options.dtype
    )
    known = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    done = {r["model"]: r for r in known}
    for name in asked:
        if name in done:
            continue
        result = {"model": name, **attempt(name, options.timeout, options.memory, code)}
        done[name] = result
        print("\n".join(rows(result, options.dtype != FLOAT32)), flush=True)
        if options.json:
            kept = [done[n] for n in MODELS if n in done]
            options.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        results = [done[n] for n in MODELS if n in done]
        options.markdown.write_text(page(results, options.dtype), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="regular expression on the names")
    parser.add_argument("--targets", default=",".join(TARGETS), help="names, with commas between")
    parser.add_argument(
        "--dtype",
        default=FLOAT32,
        choices=(FLOAT32, "float16", "bfloat16"),
        help="what the models' products take; keep each in a file of its own",
    )
    parser.add_argument("--timeout", type=int, default=1800, help="seconds of the processor")
    parser.add_argument("--memory", type=float, default=14.0, help="GiB that a model may allocate")
    parser.add_argument("--json", type=Path, help="results, to go on from")
    parser.add_argument("--markdown", type=Path)
    return parser


def rows(result: dict[str, Any], tensor: bool = False) -> list[str]:
    """A row of the table for each target; with the share of tensor cores where that is asked."""
    name, more = result["model"], " |" if tensor else ""
    if result["outcome"] != "tried":
        said = one_line(result["message"])
        return [f"| {name} | {result['outcome']}: {said} | | | | | | |{more}"]
    found = []
    for target, b in result["targets"].items():
        if "failed" in b:
            found.append(f"| {name} | {target} | {one_line(b['failed'])} | | | | | |{more}")
            continue
        share = f" {b['tensor_share']:.1%} |" if tensor else ""
        found.append(
            f"| {name} | {target} | {b['seconds']:.0f} | {b['calls']} | {b['device_kernels']} | "
            f"{b['registers']} | {b['shared_bytes']} | {b['spilling']} |{share}"
        )
    return found


def page(results: list[dict[str, Any]], dtype: str = FLOAT32) -> str:
    """The results as a page of documentation."""
    tensor = dtype != FLOAT32
    builds = [b for r in results if r["outcome"] == "tried" for b in r["targets"].values()]
    whole = [b for b in builds if "failed" not in b]
    spilling = sum(b["spilling"] for b in whole)
    kernels = sum(b["device_kernels"] for b in whole)
    title = f"# The zoo in {dtype}, compiled for GPUs" if tensor else "# The zoo, compiled for GPUs"
    asked = f" --dtype {dtype} --only '{HALF_MODELS}' --targets {HALF_TARGETS}" if tensor else ""
    files = f"gpu_zoo_{dtype}" if tensor else "gpu_zoo"
    lines = [
        title, "",
        f"Generated by `python scripts/gpu_zoo.py{asked} --json {files}.json --markdown "
        f"docs/{files}.md`, "
        f"{datetime.now(timezone.utc):%Y-%m-%d}, torch {version_of('torch')}, apache-tvm "
        f"{version_of('apache-tvm')}, tvmfuse {version_of('tvmfuse')}, without a GPU.", "",
        "Every kernel of every model is compiled to machine code of the target, from templates "
        "alone; **nothing was run on a device and nothing was measured there**. *Seconds*: fusing, "
        "scheduling and compiling. *Calls*: kernel calls of one inference. *Device kernels*: "
        "distinct ones. *Registers* a thread and *shared* bytes a block are the largest of the "
        "model's kernels, as the assembler gives them; *spilling* kernels have registers that did "
        "not fit." + (_TENSOR if tensor else ""), "",
        f"{len(results)} models, {len(builds)} builds: {len(whole)} compile, "
        f"{len(builds) - len(whole)} do not; {spilling} of {kernels} device kernels spill; at most "
        f"{max((b['seconds'] for b in whole), default=0):.0f} s a build.", "",
        "| model | target | seconds | calls | device kernels | registers | shared | spilling |"
        + (" tensor cores |" if tensor else ""),
        "|---|---|---:|---:|---:|---:|---:|---:|" + ("---:|" if tensor else ""),
    ]  # fmt: skip
    return "\n".join([*lines, *(row for r in results for row in rows(r, tensor))]) + "\n"


if __name__ == "__main__":
    main()
