"""The import law: a module imports only from its own row or from rows to its left."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tvmfuse
from tvmfuse import schedules

ROWS = (
    ("errors", "verdict", "signature"),
    ("config", "hardware"),
    ("graph", "workload"),
    ("database", "runtime"),
    ("schedules",),
    ("fusion",),  # behind the templates: what they can compute decides what may be fused
    ("frontend",),
    ("precision",),
    ("passes",),
    ("tuning",),
    ("choose", "codegen"),
    ("settle",),
    ("build",),
    ("verify", "verification", "diagnose"),
    ("deploy", "report"),
    ("offline",),
    ("run", "arguments"),
    ("fallback", "explain"),
    ("__init__", "api", "cli", "compat"),
)
ROW_OF = {name: row for row, names in enumerate(ROWS) for name in names}
TORCH_IS_FOR = {"frontend", "verify", "verification", "precision", "fallback"}
TVM_IS_NOT_FOR = {
    "errors", "verdict", "signature", "config", "hardware", "workload", "runtime", "report",
    "__init__", "arguments", "cli",
}  # fmt: skip
PACKAGE = Path(tvmfuse.__file__).parent
SCHEDULES = Path(schedules.__file__).parent


def sources():
    """Dotted name and path of every source file."""
    for folder, prefix in ((PACKAGE, "tvmfuse"), (SCHEDULES, "tvmfuse.schedules")):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join([prefix, *parts]), path


def owner(name):
    """``tvmfuse.hardware.detect`` -> ``hardware``; the package itself -> ``__init__``."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(name, path):
    """Absolute dotted names that the file imports, at the top or inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return imports_of(tree, name.removesuffix(".__init__"), path.name == "__init__.py")


def imports_of(tree, name, is_package):
    found = []
    package = name.split(".") if is_package else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "tvmfuse":
                found += [f"tvmfuse.{alias.name}" for alias in node.names]
            else:
                found.append(module)
    return found


def breach(importer, imported):
    """Why ``importer`` (a row member) may not import the dotted name; empty if it may."""
    root = imported.split(".")[0]
    if root == "torch" and importer not in TORCH_IS_FOR:
        return "torch is for " + ", ".join(sorted(TORCH_IS_FOR))
    if root == "tvm" and importer in TVM_IS_NOT_FOR:
        return f"{importer} must work without TVM"
    if root != "tvmfuse":
        return ""
    other = owner(imported)
    if other in ("__version__", "__init__"):
        return "" if importer in ROWS[-1] or other == "__version__" else "imports the package"
    if other not in ROW_OF:
        return f"{other} is in no row of the law"
    if other == importer or (other in ROWS[-1] and importer in ROWS[-1]):
        return ""
    if ROW_OF[other] >= ROW_OF[importer]:
        return f"{other} is not to the left of {importer}"
    return ""


def test_no_file_breaks_the_law():
    breaches = []
    for name, path in sources():
        importer = owner(name)
        if importer not in ROW_OF:
            breaches.append(f"{name} is in no row of the law")
            continue
        for imported in imports(name, path):
            why = breach(importer, imported)
            if why:
                breaches.append(f"{name} imports {imported}: {why}")
    assert not breaches, "\n".join(breaches)


@pytest.mark.parametrize(
    ("name", "source", "imported"),
    [
        ("tvmfuse.hardware.detect", "from tvmfuse.tuning import x", "tvmfuse.tuning"),
        ("tvmfuse.hardware.detect", "from tvmfuse import tuning", "tvmfuse.tuning"),
        ("tvmfuse.hardware.detect", "from ..tuning import x", "tvmfuse.tuning"),
        ("tvmfuse.hardware.detect", "def f():\n import tvm.relax", "tvm.relax"),
        ("tvmfuse.runtime.loader", "import torch.nn", "torch.nn"),
        ("tvmfuse.tuning.task", "import torch", "torch"),
        ("tvmfuse.schedules.base", "import tvmfuse.fusion.planner", "tvmfuse.fusion.planner"),
        ("tvmfuse.passes.x", "from tvmfuse.nowhere import x", "tvmfuse.nowhere"),
    ],
)
def test_the_law_catches_a_breach(name, source, imported):
    found = imports_of(ast.parse(source), name, False)
    assert found == [imported]
    assert breach(owner(name), imported)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("tuning", "tvmfuse.schedules.base"),
        ("hardware", "tvmfuse.hardware.record"),
        ("frontend", "torch.export"),
        ("runtime", "tvm_ffi"),
        ("cli", "tvmfuse.api"),
    ],
)
def test_the_law_lets_the_rest_pass(importer, imported):
    assert breach(importer, imported) == ""


@pytest.mark.parametrize("modules", ["tvmfuse", "tvmfuse, tvmfuse.runtime", "tvmfuse.cli"])
def test_running_needs_neither_torch_nor_the_compiler(modules):
    code = f"import sys, {modules}; assert not {{'torch', 'tvm'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
