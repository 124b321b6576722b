"""What becomes of every operator of PyTorch's own database: right, refused, wrong or crashed.

    python scripts/operator_coverage.py --dtypes float32,int64,bool --markdown docs/operators.md
    python scripts/operator_coverage.py --only 'nn.functional.*pool' --verbose

Each operator's samples go through import, fusion, build and the loaded artifact, and are compared
with eager PyTorch under the tolerances of verification. An operator runs in a child process that
may die or hang. *Right* means all samples right; *refused* means that some were refused before the
build, with the operator's name, and none was wrong. With ``--json`` results are kept as they come,
and what the file already has is not run again.
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

CHILD = Path(__file__).resolve().with_name("coverage_child.py")
ORDER = ("crashed", "wrong", "refused", "right")  # the worst names the operator

# Not operators of inference, by name: each pattern with its reason.
EXCLUDED = {
    r"(^|\.)(rand|randn|randint|randperm|normal|uniform|cauchy|exponential|geometric|log_normal|"
    r"bernoulli|multinomial|poisson|empty|new_empty|dropout|alpha_dropout|feature_alpha_dropout|"
    r"rrelu|fractional_max_pool|random)": "draws random numbers, or returns memory as it finds it",
    r"^(fft|_refs|torch\.ops)|stft|istft|complex|polar|view_as_(real|complex)|^(real|imag|angle|"
    r"conj|sgn|resolve_|cdouble|cfloat|chalf)": "complex numbers",
    r"^(linalg|lu|svd|qr|cholesky|geqrf|ormqr|symeig|triangular_solve|pca_lowrank|svd_lowrank|"
    r"logdet|inverse|pinverse|lobpcg|solve|trapz_)": "decompositions of linear algebra",
    r"sparse|to_sparse|jiterator|segment_reduce": "sparse or jitted",
    r"(^|\.)(masked\.)": "prototype of masked tensors",
    r"item|equal|allclose|is_same_size|tolist|__.*__|(^|\.)resize_|resize_as_|set_|data_ptr|"
    r"is_nonzero": "answers with a Python value or changes storage",
    r"grad|autograd|backward|checkpoint|detach_": "only for training",
    r"^special\.(airy|bessel|chebyshev|hermite|laguerre|legendre|modified_bessel|"
    r"scaled_modified|shifted_chebyshev|spherical_bessel|zeta|polygamma)|^(polygamma|mvlgamma|"
    r"igammac?)|hash_tensor|ctc_loss": "special functions of scientific computing, hashes, CTC",
    r"signal\.windows|arange|linspace|logspace|eye|full|zeros|ones|tri(l|u)_indices|"
    r"scalar_tensor": "makes a constant without an input",
    r"(^|\.)(nonzero|unique|unique_consecutive|masked_select|argwhere|combinations|"
    r"cartesian_prod|bincount|histc|histogram|histogramdd)": "its result's shape depends on values",
}


def main() -> None:
    """Sweep, print, and write what was asked for."""
    options = _parser().parse_args()
    wanted = re.compile(options.only)
    asked = [
        {"operator": name, "dtype": dtype, "samples": options.samples}
        for name, dtypes in _operators()
        for dtype in options.dtypes.split(",")
        if dtype in dtypes and wanted.search(name) and not excluded(name)
    ]
    if not asked:
        sys.exit(f"no operator of {options.dtypes} matches --only {options.only!r}")
    known = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    done = {(r["operator"], r["dtype"]): r for r in known}
    left = [a for a in asked if (a["operator"], a["dtype"]) not in done]
    for number, result in enumerate(sweep(left, options.timeout), 1):
        done[result["operator"], result["dtype"]] = result
        word = verdict(result)
        if options.verbose or word in ("wrong", "crashed"):
            print(f"{number}/{len(left)} {word:8} {result['operator']} {result['dtype']}: "
                  f"{result['messages'].get(word, '')}", flush=True)  # fmt: skip
        if options.json:
            text = json.dumps(list(done.values()), indent=1) + "\n"
            options.json.write_text(text, encoding="utf-8")
    results = [done[a["operator"], a["dtype"]] for a in asked]
    print(summary(results))
    if options.markdown:
        options.markdown.write_text(page(results, options), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="regular expression on the names")
    parser.add_argument("--dtypes", default="float32,int64,bool")
    parser.add_argument("--samples", type=int, default=6, help="of each operator and type, at most")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds an operator may take")
    parser.add_argument("--json", type=Path, help="results, to go on from")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--verbose", action="store_true", help="print every operator")
    return parser


def excluded(name: str) -> str:
    """Why an operator is none of inference; empty if it is one."""
    return next((why for pattern, why in EXCLUDED.items() if re.search(pattern, name)), "")


def _operators() -> list[tuple[str, set[str]]]:
    from coverage_child import full_name
    from torch.testing._internal.common_methods_invocations import op_db

    return [
        (full_name(o), {str(d).removeprefix("torch.") for d in o.supported_dtypes("cpu")})
        for o in op_db
    ]


def sweep(
    asked: list[dict[str, Any]], timeout_s: float, script: Path = CHILD
) -> Iterator[dict[str, Any]]:
    """Ask child processes one line at a time; a child that dies or hangs is replaced."""
    child: subprocess.Popen[str] | None = None
    for request in asked:
        if child is None:
            child = subprocess.Popen(
                [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(json.dumps(request) + "\n")
        child.stdin.flush()
        with selectors.DefaultSelector() as ready:
            ready.register(child.stdout, selectors.EVENT_READ)
            line = child.stdout.readline() if ready.select(timeout_s + 30) else ""
        if line:
            yield json.loads(line)
            continue
        child.kill()
        how = f"the process ended with {child.wait()} or took more than {timeout_s:.0f} s"
        child = None
        yield {**request, "outcomes": {"crashed": 1}, "messages": {"crashed": how}}
    if child is not None:
        child.kill()
        child.wait()


def verdict(result: dict[str, Any]) -> str:
    """The worst outcome of the samples; ``"skipped"`` when eager takes none of them."""
    return next((word for word in ORDER if result["outcomes"].get(word)), "skipped")


def summary(results: list[dict[str, Any]]) -> str:
    """Counts by outcome, in one line."""
    counts = Counter(map(verdict, results))
    judged = sum(n for word, n in counts.items() if word != "skipped")
    parts = [f"{counts[w]} {w} ({counts[w] / max(1, judged):.1%})" for w in reversed(ORDER)]
    return f"{judged} operators and types: {', '.join(parts)}"


def page(results: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """The result as a page of documentation."""
    versions = ", ".join(f"{p} {metadata.version(p)}" for p in ("torch", "apache-tvm", "tvmfuse"))
    lines = [
        "# Operators", "",
        "Generated by `python scripts/operator_coverage.py "
        f"--dtypes {options.dtypes} --samples {options.samples} --markdown docs/operators.md`, "
        f"{datetime.now(timezone.utc):%Y-%m-%d}, {versions}.", "",
        f"{summary(results)}.", "",
        "*Right*: all samples of PyTorch's operator database agree with eager PyTorch. *Refused*: "
        "some are refused before the build, with the operator's name; none is wrong.", "",
        "Not in the table: " + "; ".join(sorted(set(EXCLUDED.values()))) + ".", "",
        "| operator | type | result | samples | message |", "|---|---|---|---:|---|",
    ]  # fmt: skip
    for result in results:
        word = verdict(result)
        said = result["messages"].get(word, "").replace(f"{CHILD.parent.parent}/", "")
        message = " ".join(said.split())[:160].replace("|", "\\|")
        counts = ", ".join(f"{n} {w}" for w, n in result["outcomes"].items())
        lines.append(
            f"| {result['operator']} | {result['dtype']} | {word} | {counts} | {message} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
