"""What becomes of models by name: right, refused, wrong or crashed.

    python scripts/model_coverage.py --sets transformers,timm --json results.json
    python scripts/model_coverage.py --json docs/models.json --markdown docs/models.md
    python scripts/model_coverage.py --json docs/models.json --stored --markdown docs/models.md
    python scripts/model_coverage.py --only 'swin|vit'
    python scripts/model_coverage.py --json docs/models.json --again 'wrong,too long'

Each model goes through import, fusion, build (templates only, no tuning log) and the three levels
of verification, with random weights and the input size of its name, in a process of its own.
*Right* means that all of it passed; *refused* that the import said no, with the operator's name.
With ``--json`` results are kept as they come, and models that the file already has are not run
again, unless their outcome is named by ``--again``; ``docs/models.json`` holds those of the page,
to go on from. ``--stored`` runs none and writes the page from what the file has. Time is limited by
the processor's seconds, so that a machine which other work shares gives the same outcomes; whoever
sleeps is ended too. On such a machine set OMP_NUM_THREADS=1 and TVM_NUM_THREADS=1: threads that
wait for one another in a loop spend most of the time there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

ORDER = ("right", "refused", "wrong", "crashed", "too long")

TRANSFORMERS = (
    "bert-base-uncased", "distilbert-base-uncased", "roberta-base", "gpt2", "t5-small-encoder",
    "t5-small-decoder", "vit-base-patch16-224", "swin-tiny-patch4-window7-224",
    "whisper-tiny-encoder", "clip-vit-base-patch32", "smollm2-135m",
)  # fmt: skip

# A small member of each family: families share their code over all sizes.
TIMM = (
    "resnet18", "legacy_seresnet18", "res2net50_14w_8s", "hrnet_w18_small", "densenet121",
    "dla46_c", "dpn48b", "vgg11_bn", "inception_v3", "xception41", "regnetx_002", "regnety_002",
    "mobilenetv2_050", "mobilenetv3_small_050", "efficientnet_lite0", "tf_efficientnetv2_b0",
    "ghostnet_050", "mnasnet_small", "lcnet_050", "tinynet_e", "rexnet_100", "repvgg_a0",
    "convnext_atto", "convmixer_768_32", "mixer_s32_224", "resmlp_12_224", "gmlp_ti16_224",
    "vit_tiny_patch16_224", "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "pvt_v2_b0",
    "poolformer_s12", "mobilevit_xxs", "efficientformer_l1", "levit_128s", "fastvit_t8",
    "edgenext_xx_small", "coat_lite_tiny", "crossvit_tiny_240", "cait_xxs24_224",
    "xcit_nano_12_p16_224", "twins_svt_small", "cspresnet50",
)  # fmt: skip

OWN = ("yolov5n", "yolov5s", "dlrm")

_GRACE_S = 5  # between the signal that names the reason and the one that cannot be held off
_PATIENCE = 8  # wall-clock seconds allowed for each of the processor's


def main() -> None:
    """Sweep, print, and write what was asked for."""
    options = _parser().parse_args()
    wanted = re.compile(options.only)
    asked = [
        (group, name)
        for group in options.sets.split(",")
        for name in models_of(group)
        if wanted.search(name)
    ]
    if not asked:
        sys.exit(f"no model of {options.sets} matches --only {options.only!r}")
    known = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    again = options.again.split(",")
    done = {r["model"]: r for r in known}
    for number, (group, name) in enumerate(asked, 1):
        if options.stored or (name in done and done[name]["outcome"] not in again):
            continue
        result = {"set": group, "model": name, "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
                  **attempt(name, options.timeout, options.memory)}  # fmt: skip
        result.update({"message": anywhere(result["message"])} if "message" in result else {})
        done[name] = result
        print(f"{number}/{len(asked)} {result['outcome']:8} {name} {result['seconds']:.0f} s "
              f"{result.get('message', '')[:200]}", flush=True)  # fmt: skip
        if options.json:
            options.json.write_text(json.dumps(list(done.values()), indent=1) + "\n")
    results = [done[name] for _, name in asked if name in done]
    if not results:
        sys.exit(f"--stored: {options.json} has none of the {len(asked)} models asked for")
    print(summary(results))
    if options.markdown:
        options.markdown.write_text(
            page(list(done.values()), options.sets.split(",")), encoding="utf-8"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default="transformers,timm,own,classification,segmentation,video",
                        help="of these, with commas between")  # fmt: skip
    parser.add_argument("--only", default="", help="regular expression on the names")
    parser.add_argument("--again", default="", help="outcomes to try again, with commas between")
    parser.add_argument(
        "--timeout",
        type=int,
        default=900,
        help="seconds of the processor, all threads, that a model may take",
    )
    parser.add_argument("--memory", type=float, default=12.0, help="GiB that a model may allocate")
    parser.add_argument("--json", type=Path, help="results, to go on from")
    parser.add_argument(
        "--stored", action="store_true", help="run nothing: results are those that --json has"
    )
    parser.add_argument("--markdown", type=Path)
    return parser


def models_of(group: str) -> tuple[str, ...]:
    """Names of a set, as ``--model`` takes them."""
    if group == "transformers":
        return tuple(f"hf:{name}" for name in TRANSFORMERS)
    if group == "timm":
        return tuple(f"timm:{name}" for name in TIMM)
    if group == "own":
        return OWN
    import torchvision

    kinds = {
        "classification": torchvision.models,
        "segmentation": torchvision.models.segmentation,
        "video": torchvision.models.video,
        "detection": torchvision.models.detection,
        "optical_flow": torchvision.models.optical_flow,
    }
    if group not in kinds:
        sys.exit(f"unknown set {group!r}; choose from transformers, timm, own, {', '.join(kinds)}")
    return tuple(torchvision.models.list_models(module=kinds[group]))


def attempt(name: str, timeout_s: int, memory_gib: float, code: str = "") -> dict[str, Any]:
    """One model in a process of its own; ``code`` is what the process runs."""
    begin, spent = time.perf_counter(), _children_s()
    limits = [str(timeout_s), str(timeout_s + _GRACE_S), str(int(memory_gib * 2**30))]
    child = subprocess.Popen(
        [sys.executable, "-c", _LIMITS + (code or _CHILD), name, *limits], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    asleep = False
    try:
        out, err = child.communicate(timeout=timeout_s * _PATIENCE)
    except subprocess.TimeoutExpired:
        asleep = True
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
    took = {
        "seconds": round(time.perf_counter() - begin, 1),
        "processor_s": round(_children_s() - spent, 1),
    }
    if asleep or child.returncode == -signal.SIGXCPU:
        what = "wall-clock time" if asleep else "the processor"
        seconds = timeout_s * _PATIENCE if asleep else timeout_s
        return {"outcome": "too long", "message": f"over {seconds} s of {what}", **took}
    lines = out.strip().splitlines()
    if child.returncode or not lines:
        last = (err.strip().splitlines() or ["no message"])[-1]
        message = f"the process ended with {child.returncode}: {last}"
        return {"outcome": "crashed", "message": message, **took}
    return {**json.loads(lines[-1]), **took}


def _children_s() -> float:
    """Seconds of the processor that ended children have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


_LIMITS = """
import resource, sys

soft_s, hard_s, data_bytes = map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_CPU, (soft_s, hard_s))
resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
"""

_CHILD = """
import io, json, sys, tempfile, warnings
from pathlib import Path

warnings.simplefilter("ignore")
from tvmfuse import api
from tvmfuse.config import CompileOptions
from tvmfuse.errors import ImportModelError, VerificationError
from tvmfuse.report.progress import Progress

with tempfile.TemporaryDirectory() as folder:
    options = CompileOptions(sys.argv[1], trials=0, no_log=True, output=Path(folder) / "artifact")
    try:
        report = api.run(options, Progress(io.StringIO()))
        answer = {"outcome": "right", "kernels": report["kernels"],
                  "ms": report["latency_ms"]["median"], "eager_ms": report["baseline_ms"]["eager"]}
    except ImportModelError as error:
        answer = {"outcome": "refused", "message": str(error)}
    except VerificationError as error:
        answer = {"outcome": "wrong", "message": str(error)}
    except Exception as error:
        answer = {"outcome": "crashed", "message": f"{type(error).__name__}: {error}"}
print(json.dumps(answer))
"""


def summary(results: list[dict[str, Any]]) -> str:
    """Counts by outcome, in one line."""
    counts = Counter(r["outcome"] for r in results)
    parts = [f"{counts[w]} {w}" for w in ORDER if counts[w]]
    return f"{len(results)} models: {', '.join(parts)} ({counts['right'] / len(results):.1%} right)"


def page(results: list[dict[str, Any]], groups: Sequence[str] = ()) -> str:
    """The results as a page of documentation, which also names what of ``groups`` was not run."""
    packages = ("torch", "torchvision", "timm", "transformers", "apache-tvm", "tvmfuse")
    versions = ", ".join(f"{p} {version_of(p)}" for p in packages)
    lines = [
        "# Models", "",
        "Generated by `python scripts/model_coverage.py --json docs/models.json --stored "
        f"--markdown docs/models.md`, {datetime.now(timezone.utc):%Y-%m-%d}, {versions}; without "
        "`--stored` the same command goes on with the models that the file lacks.", "",
        "Random weights, float32, batch 1, the input size of the name; `--trials 0 --no-log`. "
        "*Right*: imported, built, and verified at three levels against eager PyTorch. Kernels: "
        "calls in one inference, of how many operators. Seconds: the whole command, by the wall "
        "clock on two cores that other work shared, so upper bounds, and of the processor. "
        f"Run {_days(results)}.", "",
    ]  # fmt: skip
    for group in dict.fromkeys(r["set"] for r in results):
        rows = [r for r in results if r["set"] == group]
        lines += [
            f"## {group}", "", f"{summary(rows)}.", "",
            "| model | result | kernels | of operators | seconds | of the processor | message |",
            "|---|---|---:|---:|---:|---:|---|",
        ]  # fmt: skip
        for r in rows:
            kernels = r.get("kernels", {})
            message = one_line(r.get("message", ""))
            lines.append(
                f"| {r['model']} | {r['outcome']} | {kernels.get('after', '')} | "
                f"{kernels.get('before', '')} | {r['seconds']:.0f} | {_whole(r)} | {message} |"
            )
        lines.append("")
        left = [n for n in models_of(group) if n not in {r["model"] for r in rows}]
        if group in groups and left:
            lines += [f"Not run ({len(left)}): {', '.join(left)}.", ""]
    for group in groups:
        if all(r["set"] != group for r in results):
            lines += [f"## {group}", "", f"Not run: {', '.join(models_of(group))}.", ""]
    return "\n".join(lines)


def _days(results: list[dict[str, Any]]) -> str:
    """First and last day on which models were run."""
    days = sorted({r["date"] for r in results if "date" in r})
    return "on " + " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "on no day it knows"


def _whole(result: dict[str, Any]) -> str:
    spent = result.get("processor_s")
    return "" if spent is None else f"{spent:.0f}"


def anywhere(message: str) -> str:
    """A message without the folder in which this machine has its packages."""
    return re.sub(r"/\S*/site-packages/", "", message)


def one_line(message: str) -> str:
    """A message as a cell of a table."""
    short = anywhere(" ".join(message.split()))
    return short[:200].replace("|", "\\|")


def version_of(package: str) -> str:
    """Version of an installed package, for the head of a page."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    main()
