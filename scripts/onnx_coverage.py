"""What becomes of every node test of the ``onnx`` package: right, refused, wrong or crashed.

    python scripts/onnx_coverage.py --markdown docs/onnx.md --json build/onnx.json
    python scripts/onnx_coverage.py --only 'conv|pool' --verbose

Each test's model goes through import, fusion, build and the loaded artifact; what comes out is
compared with the outputs that the test itself expects, not with PyTorch. Tests run some together
in a child process that may die or hang; then each runs alone. With ``--json`` results are kept as
they come, and what the file already has is not run again. Inputs that decide shapes (of
``Reshape``, axes, ``pads``) are made constants, as a compiled module must have them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from operator_coverage import sweep

CHILD = Path(__file__).with_name("onnx_child.py")
WORDS = ("right", "refused", "wrong", "crashed")
OPSET = 21


def main() -> None:
    """Sweep, print, and write what was asked for."""
    options = _parser().parse_args()
    names = tests(re.compile(options.only), options.every, options.expanded)[:: options.stride]
    if not names:
        sys.exit(f"no node test matches --only {options.only!r}")
    results: list[dict[str, Any]] = []
    if options.json and options.json.exists():
        results += json.loads(options.json.read_text(encoding="utf-8"))
        results[:] = [r for r in results if r["test"] in names]
    done = {r["test"] for r in results}
    for result in judged([n for n in names if n not in done], options.together, options.timeout):
        results.append(result)
        if options.verbose or result["outcome"] in ("wrong", "crashed"):
            print(f"{len(results)}/{len(names)} {result['outcome']:8} {result['test']}: "
                  f"{result['message']}", flush=True)  # fmt: skip
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(summary(results))
    if options.markdown:
        options.markdown.write_text(page(results, options), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="regular expression on the names")
    parser.add_argument("--every", action="store_true", help="operators newer than opset 21 too")
    parser.add_argument("--expanded", action="store_true", help="function bodies as graphs too")
    parser.add_argument("--stride", type=int, default=1, help="take every n-th test")
    parser.add_argument("--together", type=int, default=12, help="tests compiled together")
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds for some tests")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--verbose", action="store_true", help="print every test")
    return parser


def tests(only: re.Pattern[str], every: bool, expanded: bool) -> list[str]:
    """Names of the node tests to run, those of one operator beside one another."""
    from onnx_child import node_tests

    return [
        name
        for name, test in node_tests().items()
        if only.search(name)
        and (expanded or "_expanded" not in name)
        and (every or of_opset(test.model))
    ]


def of_opset(model: Any) -> bool:
    """Whether opset 21 has all of a model: operators, their attributes and element types."""
    import onnx

    if any(
        node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type, OPSET, "")
        for node in model.graph.node
    ):
        return False
    older = onnx.ModelProto()
    older.CopyFrom(model)
    for used in older.opset_import:
        used.version = min(used.version, OPSET)
    try:
        onnx.checker.check_model(older)
        onnx.shape_inference.infer_shapes(older, check_type=True, strict_mode=True)
    except onnx.checker.ValidationError:
        return False
    except onnx.shape_inference.InferenceError as error:
        # Anything else that inference minds is about shapes, which opsets share.
        return "unsupported type" not in str(error)
    return True


def beyond_tensors(model: Any) -> bool:
    """Whether a model's inputs or outputs are texts, sequences or optionals."""
    from onnx import TensorProto

    for value in (*model.graph.input, *model.graph.output):
        if not value.type.HasField("tensor_type"):
            return True
        if value.type.tensor_type.elem_type == TensorProto.STRING:
            return True
    return False


def judged(names: list[str], together: int, timeout_s: float) -> Iterator[dict[str, Any]]:
    """Outcomes: of some tests together, and one by one where that killed the child."""
    batches = [names[i : i + together] for i in range(0, len(names), together)]
    for answer in sweep([{"tests": batch} for batch in batches], timeout_s, CHILD):
        if "results" in answer:
            yield from answer["results"]
            continue
        alone = [{"tests": [name]} for name in answer["tests"]]
        for one in sweep(alone, timeout_s, CHILD):
            died = {"test": one["tests"][0], "outcome": "crashed", "fixed": []}
            yield from one.get("results") or [{**died, "message": one["messages"]["crashed"]}]


def summary(results: list[dict[str, Any]]) -> str:
    """Counts by outcome, in one line."""
    counts = Counter(r["outcome"] for r in results)
    parts = [f"{counts[w]} {w} ({counts[w] / max(1, len(results)):.1%})" for w in WORDS]
    return f"{len(results)} node tests: {', '.join(parts)}"


def page(results: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """The result as a page of documentation."""
    versions = ", ".join(
        f"{p} {metadata.version(p)}" for p in ("onnx", "torch", "apache-tvm", "tvmfuse")
    )
    asked = f"--stride {options.stride} " if options.stride > 1 else ""
    asked += f"--only '{options.only}' " if options.only else ""
    asked += "".join(f"--{o} " for o in ("every", "expanded") if getattr(options, o))
    fixed = sum(bool(r["fixed"]) and r["outcome"] == "right" for r in results)
    from onnx_child import node_tests

    models = {name: test.model for name, test in node_tests().items()}
    plain = [r for r in results if not beyond_tensors(models[r["test"]])]
    part = f", every {options.stride}th of them" if options.stride > 1 else ""
    lines = [
        "# ONNX", "",
        f"Generated by `python scripts/onnx_coverage.py {asked}--markdown docs/onnx.md`, "
        f"{datetime.now(timezone.utc):%Y-%m-%d}, {versions}.", "",
        f"All: {summary(results)}.", "",
        f"Without those whose inputs or outputs are texts, sequences or optionals: "
        f"{summary(plain)}.", "",
        f"The node tests of the `onnx` package that are of opset {OPSET} or could be: it has their "
        f"operators, attributes and element types{part}. "
        "*Right*: the loaded artifact gives the outputs that the test expects, integers exactly. "
        "*Refused*: before "
        "the build, with the node and its operator. "
        f"Of the right ones {fixed} pass something that decides shapes (axes, pads, a shape) as "
        "an input of the model; it is made a constant.", "",
        "| test | result | made constant | message |", "|---|---|---|---|",
    ]  # fmt: skip
    for r in sorted(results, key=lambda r: (-WORDS.index(r["outcome"]), r["test"])):
        message = " ".join(r["message"].split())[:160].replace("|", "\\|")
        lines.append(
            f"| {r['test'].removeprefix('test_')} | {r['outcome']} | {', '.join(r['fixed'])} | "
            f"{message} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
