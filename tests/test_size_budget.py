"""Files and functions stay small enough to be read in one sitting."""

import ast
import statistics
from pathlib import Path

import tvmfuse
from tvmfuse import schedules

FILE_CAP, FILE_MEDIAN = 450, 130
FUNCTION_CAP, TEMPLATE_CAP, FUNCTION_MEDIAN = 70, 120, 10
COLUMNS = 100
ROOT = Path(__file__).resolve().parent.parent
PACKAGE, SCHEDULES = Path(tvmfuse.__file__).parent, Path(schedules.__file__).parent


def files(*folders):
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def lengths(path):
    """Name and code lines of every function; its docstring and decorators do not count."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                length -= node.body[0].end_lineno - node.body[0].lineno + 1
            yield node.name, length


def test_no_file_is_too_long():
    sizes = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in files(PACKAGE, SCHEDULES)}
    over = {p.name: n for p, n in sizes.items() if n > FILE_CAP}
    assert not over, f"over {FILE_CAP} lines: {over}; such a file holds two things"
    assert statistics.median(sizes.values()) <= FILE_MEDIAN


def test_no_function_is_too_long():
    over, sizes = {}, []
    for path in files(PACKAGE, SCHEDULES):
        cap = TEMPLATE_CAP if SCHEDULES in path.parents else FUNCTION_CAP
        for name, length in lengths(path):
            sizes.append(length)
            if length > cap:
                over[f"{path.name}:{name}"] = length
    assert not over, f"functions over their cap: {over}"
    assert statistics.median(sizes) <= FUNCTION_MEDIAN


def test_no_line_is_too_wide():
    folders = (PACKAGE, SCHEDULES, ROOT / "scripts", ROOT / "tests")
    wide = [
        f"{path.name}:{number}"
        for path in files(*folders)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert not wide, f"over {COLUMNS} columns: {wide}"


def test_docstrings_do_not_count(tmp_path):
    path = tmp_path / "x.py"
    path.write_text('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n')
    assert list(lengths(path)) == [("f", 2)]
