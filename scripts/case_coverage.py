"""What becomes of small models kept as files, against what each file expects.

    python scripts/case_coverage.py FOLDER --json cases.json
    python scripts/case_coverage.py FOLDER --only '^(18|19)'

A case is a Python file with ``make()``, which returns a module and its example inputs, and
``EXPECT``: ``"run"``, or ``"clear-error-or-run"`` where a refusal by name will do. Each goes the
way of a model by name: see ``model_coverage.py``. The exit status is 1 if any case is not as it
expects.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from model_coverage import attempt, one_line

ALLOWED = {"run": ("right",), "clear-error-or-run": ("right", "refused")}


def main() -> None:
    """Run the cases and print those that are not as they expect, and the counts."""
    options = _parser().parse_args()
    wanted = re.compile(options.only)
    cases = [p for p in sorted(options.folder.glob("*.py")) if wanted.search(p.stem)]
    if not cases:
        sys.exit(f"no case in {options.folder} matches --only {options.only!r}")
    there = str(options.folder.resolve())
    os.environ["PYTHONPATH"] = os.pathsep.join([there, os.environ.get("PYTHONPATH", "")])
    results = []
    for case in cases:
        result = {"expect": expectation(case), **attempt(f"{case.stem}:make", options.timeout, 8.0)}
        results.append({"model": case.stem, **result})
        word = "ok " if as_expected(result) else "BAD"
        print(f"{word} {result['outcome']:8} {case.stem} {one_line(result.get('message', ''))}",
              flush=True)  # fmt: skip
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    good = sum(as_expected(r) for r in results)
    print(f"{good} of {len(results)} cases as they expect")
    sys.exit(good != len(results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the cases are")
    parser.add_argument("--only", default="", help="regular expression on the names")
    parser.add_argument("--timeout", type=int, default=300, help="processor seconds of a case")
    parser.add_argument("--json", type=Path, help="where the results go")
    return parser


def expectation(case: Path) -> str:
    """The value of ``EXPECT`` in a file, which is not run for it."""
    for statement in ast.parse(case.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "EXPECT":
            value = ast.literal_eval(statement.value)
            if value in ALLOWED:
                return str(value)
    sys.exit(f"{case} does not say EXPECT = one of {', '.join(ALLOWED)}")


def as_expected(result: dict[str, Any]) -> bool:
    """Whether an outcome is one that the case allows."""
    return result["outcome"] in ALLOWED[result["expect"]]


if __name__ == "__main__":
    main()
