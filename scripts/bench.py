"""Measure tvmfuse and its peers side by side, in one interleaved run.

    python scripts/bench.py --models resnet50 --peers eager,inductor,onnxruntime --json out.json

Every system lives in a process of its own, stopped while it is not its turn. A round gives each
system one turn, in an order shuffled anew; so a slow minute of the machine falls on all alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import sys
import tempfile
import time
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from bench_model import TARGET, ModelBench, say
from bench_peers import PEERS
from bench_table import as_markdown, as_text, disturbance, table

from tvmfuse.errors import OptionError, TvmfuseError, UnknownNameError

PACKAGES = (
    *("tvmfuse", "numpy", "torch", "torchvision", "onnxruntime", "openvino", "onnx", "onnxscript"),
    *("apache-tvm", "apache-tvm-ffi"),
)


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse and check the command line; raises TvmfuseError on what cannot be honoured."""
    parser = argparse.ArgumentParser(prog="bench.py", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--models", required=True, help="comma-separated: names, package.module:callable, .pt2")
    add("--peers", default=",".join(PEERS), help="comma-separated (default: %(default)s)")
    add("--no-tvmfuse", action="store_true", help="measure the peers only")
    add("--dtype", choices=["float32"], default="float32")
    add("--batch", type=int, help="first extent of every input (default: the model's own)")
    add("--shape", help="input shapes, e.g. 1,3,224,224 or 1,128:int64;1,128:int64")
    add("--weights", help="'random' (seeded; torchvision's default), 'pretrained' or a file")
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every system")
    add("--rounds", type=int, default=20)
    add("--calls", type=int, default=5, help="timed calls in one turn, fewer if slow")
    add("--load-timeout", type=float, default=1800.0, metavar="SECONDS", help="of one system")
    add("--artifacts", type=Path, help=f"folder of prebuilt artifacts <model>-{TARGET}")
    add("--trials", type=int, help="compile with so many trials (0: templates only)")
    add("--time-budget", type=float, metavar="SECONDS", help="of tuning, where it compiles")
    add("--log-dir", type=Path, help="tuning logs, where it compiles")
    add("--json", type=Path, help="write the result here")
    add("--output-markdown", type=Path, help="write the tables here")
    options = parser.parse_args(argv)
    options.models = [m for m in options.models.split(",") if m]
    options.peers = list(dict.fromkeys(p for p in options.peers.split(",") if p))
    options.command = "python scripts/bench.py " + shlex.join(argv)
    _check(options)
    return options


def _check(options: argparse.Namespace) -> None:
    for peer in options.peers:
        if peer not in PEERS:
            raise UnknownNameError("peer", peer, PEERS)
    for name in ("threads", "rounds", "calls"):
        if getattr(options, name) < 1:
            raise OptionError(f"--{name} must be at least 1, got {getattr(options, name)}")
    compiling = [n for n in ("trials", "time_budget", "log_dir") if getattr(options, n) is not None]
    flags = ", ".join("--" + n.replace("_", "-") for n in compiling)
    if compiling and options.artifacts:
        raise OptionError(f"{flags} would compile, --artifacts takes what is built: give one")
    if options.no_tvmfuse and (compiling or options.artifacts):
        raise OptionError(f"--no-tvmfuse leaves no use for {flags or '--artifacts'}")
    if options.no_tvmfuse and not options.peers:
        raise OptionError("nothing to measure: --no-tvmfuse and no --peers")
    if not options.models:
        raise OptionError("nothing to measure: --models names no model")


def machine_facts(options: argparse.Namespace) -> dict[str, Any]:
    """CPU, threads, versions, date and command: what a reader needs to judge the numbers."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), cpu)
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "threads": options.threads,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "versions": versions,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": options.command,
        "load_average_at_start": list(os.getloadavg()),
    }


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` as a whole, so that an interrupt leaves the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


def exit_code(result: dict[str, Any]) -> int:
    """1 where a model, tvmfuse or every peer failed or was wrong; peers alone may fail."""
    for entry in result["models"].values():
        if "failed" in entry or entry["tvmfuse"].get("wrong") or "failed" in entry["tvmfuse"]:
            return 1
        asked = [entry["tvmfuse"], *entry["peers"].values()]
        if not any("median_ms" in system for system in asked):
            return 1
    return 0


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all models; writes the JSON after each, so that an interrupt loses only one."""
    result: dict[str, Any] = {
        "machine": machine_facts(options),
        "dtype": options.dtype,
        "seed": options.seed,
        "models": {},
    }
    for spec in options.models:
        start_s = time.perf_counter()
        scratch = Path(tempfile.mkdtemp(prefix="tvmfuse-bench-"))
        try:
            bench = ModelBench(spec, options, scratch)
            entry = bench.measure()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        result["models"][bench.name] = {**entry, "wall_s": time.perf_counter() - start_s}
        result["machine"]["load_average_at_end"] = list(os.getloadavg())
        if options.json:
            write_atomically(options.json, json.dumps(result, indent=1) + "\n")
        if options.output_markdown:
            write_atomically(options.output_markdown, as_markdown(result))
        lines = [bench.name, as_text(table(entry)), disturbance(entry)]
        print("\n" + "\n".join(line for line in lines if line), flush=True)
    return result


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    try:
        return exit_code(run(parse(sys.argv[1:] if argv is None else argv)))
    except TvmfuseError as error:
        say(f"bench.py: {error}")
        return 2
    except KeyboardInterrupt:
        say("bench.py: interrupted; models finished so far are written")
        return 130


if __name__ == "__main__":
    sys.exit(main())
