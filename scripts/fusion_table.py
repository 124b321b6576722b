"""What fusion saves on the zoo: kernels, bytes of intermediate tensors, memory; and ONNX Runtime.

    python scripts/fusion_table.py --json fusion.json --markdown docs/fusion.md
    python scripts/fusion_table.py --json fusion.json --only 'swin|vit' --again failed

Each model is built twice in a process of its own, with every rule of fusion switched off (one
kernel an operator) and with all of them, from templates alone. Every figure is read from the
compiled program. With ``--json`` results are kept as they come, and models that the file already
has are not run again, unless they failed and ``--again failed`` is given, or with ``--again all``.
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

from model_coverage import attempt, one_line, version_of

ZOO = (
    "resnet50", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "inception_v3",
    "googlenet", "densenet121", "squeezenet1_1", "shufflenet_v2_x1_0", "convnext_tiny",
    "vit_b_16", "swin_t", "hf:bert-base-uncased", "hf:gpt2", "yolov5s", "dlrm",
)  # fmt: skip

_CHILD = f"""
import contextlib, json, warnings

sys.path.insert(0, {str(Path(__file__).resolve().parent)!r})
warnings.simplefilter("ignore")
with contextlib.redirect_stdout(sys.stderr):
    from fusion_child import answer

    found = answer(sys.argv[1])
print(json.dumps({{"outcome": "built", **found}}))
"""
_MIB = 2**20


def main() -> None:
    """Build, print, and write what was asked for."""
    options = _parser().parse_args()
    wanted = re.compile(options.only)
    asked = [name for name in ZOO if wanted.search(name)]
    if not asked:
        sys.exit(f"no model of {', '.join(ZOO)} matches --only {options.only!r}")
    known = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    done = {r["model"]: r for r in known if not _is_again(r, options.again)}
    for number, name in enumerate(asked, 1):
        if name in done:
            continue
        result = {"model": name, **attempt(name, options.timeout, options.memory, _CHILD)}
        done[name] = result
        print(f"{number}/{len(asked)} {_row(result)} {result['seconds']:.0f} s", flush=True)
        if options.json:
            kept = [done[n] for n in ZOO if n in done]
            options.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        rows = [done[n] for n in ZOO if n in done]
        options.markdown.write_text(page(rows), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="regular expression on the names")
    parser.add_argument("--again", choices=("failed", "all"), help="what to run again")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds of the processor")
    parser.add_argument("--memory", type=float, default=14.0, help="GiB that a model may allocate")
    parser.add_argument("--json", type=Path, help="results, to go on from")
    parser.add_argument("--markdown", type=Path)
    return parser


def _is_again(result: dict[str, Any], again: str | None) -> bool:
    return again == "all" or (again == "failed" and not _is_whole(result))


def _is_whole(result: dict[str, Any]) -> bool:
    return result["outcome"] == "built" and "nodes" in result["onnxruntime"]


def moved(build: dict[str, Any]) -> int:
    """Bytes of intermediate tensors that one inference writes and reads."""
    return int(build["written_bytes"] + build["read_bytes"])


def saved(before: float, after: float) -> float:
    """Share of ``before`` that is gone."""
    return 1.0 - after / before if before else 0.0


def shares(result: dict[str, Any]) -> dict[str, float]:
    """What fusion saves on one model: kernels, bytes moved, memory."""
    before, after = result["unfused"], result["fused"]
    return {
        "kernels": saved(before["kernels"], after["kernels"]),
        "bytes": saved(moved(before), moved(after)),
        "memory": saved(before["memory_bytes"], after["memory_bytes"]),
    }


def _row(result: dict[str, Any]) -> str:
    """One row of the table."""
    if result["outcome"] != "built":
        return (
            f"| {result['model']} | {result['outcome']}: {one_line(result['message'])} |||||||||||"
        )
    before, after, share = result["unfused"], result["fused"], shares(result)
    ort = result["onnxruntime"]
    cells = [
        result["model"],
        before["kernels"], after["kernels"], f"{-share['kernels']:+.0%}",
        f"{moved(before) / _MIB:.1f}", f"{moved(after) / _MIB:.1f}", f"{-share['bytes']:+.0%}",
        f"{before['memory_bytes'] / _MIB:.1f}", f"{after['memory_bytes'] / _MIB:.1f}",
        f"{-share['memory']:+.0%}",
        ort.get("nodes", "failed"), _fewer(after["kernels"], ort),
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def _fewer(kernels: int, ort: dict[str, Any]) -> str:
    if "nodes" not in ort:
        return ""
    return "yes" if kernels < ort["nodes"] else "no"


def page(results: list[dict[str, Any]]) -> str:
    """The results as a page of documentation."""
    packages = ("torch", "apache-tvm", "onnxruntime", "tvmfuse")
    versions = ", ".join(f"{p} {version_of(p)}" for p in packages)
    built = [r for r in results if r["outcome"] == "built"]
    targets = ", ".join(sorted({r["target"] for r in built}))
    lines = [
        "# What fusion saves", "",
        "Generated by `python scripts/fusion_table.py --json fusion.json --markdown "
        f"docs/fusion.md`, {datetime.now(timezone.utc):%Y-%m-%d}, {versions}, for {targets}.", "",
        "Random weights, float32, batch 1, the input size of the name, templates alone. *Unfused*: "
        "every rule is switched off (`--no-rule` with all four categories), one kernel an "
        "operator; batch norm is folded into the weights in both builds. Every figure is read "
        "from the compiled program:", "",
        "- *kernels*: kernel calls of one inference;",
        "- *moved*: bytes of intermediate tensors, each counted when a kernel writes it and each "
        "time that a kernel reads it; without weights, inputs and results. A kernel that reads a "
        "part of a tensor counts with all of it. Scratch memory inside a kernel (a padded tile) "
        "is not counted;",
        "- *memory*: the static memory plan, intermediates and results, without weights and "
        "inputs;",
        "- *ORT nodes*: nodes of ONNX Runtime's optimised graph of the same model "
        "(`ORT_ENABLE_ALL`, `torch.onnx.export`, CPU provider).", "",
        "| model | kernels unfused | fused | | moved MiB unfused | fused | | memory MiB unfused | "
        "fused | | ORT nodes | fewer than ORT |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
        *(_row(r) for r in results), "", *_summary(built), "",
    ]  # fmt: skip
    failed = [r for r in built if "nodes" not in r["onnxruntime"]]
    lines += [
        f"- {r['model']}, ONNX Runtime: {one_line(r['onnxruntime']['failed'])}" for r in failed
    ]
    lines += _categories(built)
    return "\n".join(lines) + "\n"


def _summary(built: list[dict[str, Any]]) -> list[str]:
    if not built:
        return []
    mean = {k: sum(shares(r)[k] for r in built) / len(built) for k in shares(built[0])}
    compared = [r for r in built if "nodes" in r["onnxruntime"]]
    fewer = sum(r["fused"]["kernels"] < r["onnxruntime"]["nodes"] for r in compared)
    return [
        f"On average over {len(built)} models: kernels {-mean['kernels']:+.0%}, bytes moved "
        f"{-mean['bytes']:+.0%}, memory {-mean['memory']:+.0%}. Fewer kernels than ONNX Runtime's "
        f"graph has nodes: {fewer} of {len(compared)}.",
    ]


def _categories(built: list[dict[str, Any]]) -> list[str]:
    """Fusions of each model by category."""
    if not built:
        return []
    names = list(built[0]["fused"]["fusion"])
    lines = ["", "Fusions by category:", "", "| model | " + " | ".join(names) + " |"]
    lines.append("|---|" + "---:|" * len(names))
    for r in built:
        counts = " | ".join(str(r["fused"]["fusion"][n]) for n in names)
        lines.append(f"| {r['model']} | {counts} |")
    return lines


if __name__ == "__main__":
    main()
