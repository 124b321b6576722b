"""Rules of the user's own, from a TOML or a Python file.

TOML holds vertical rules, one table each; ``anchor`` and ``op`` are words of ``docs/rules.md``::

    [[rule]]
    anchor = "softmax"
    op = "relu"
    side = "prologue"        # or "epilogue", the default
    dtypes = ["float32"]     # optional
    ranks = [2, 4]           # optional
    anchors = true           # optional: op may be an anchor itself, as in dense behind dense

Python holds any rules: the file binds ``RULES`` to objects of :class:`VerticalRule`, or of the
contract in :mod:`tvmfuse.fusion.rule`.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from tvmfuse.errors import OptionError, UnknownNameError
from tvmfuse.fusion.group import CATEGORIES
from tvmfuse.fusion.rules.vertical import ANCHORS, EPILOGUE, SIDES, VerticalRule

_FIELDS = ("anchor", "op", "side", "dtypes", "ranks", "anchors")
_CONTRACT = ("name", "category", "root", "match", "check", "rewrite")


def load_rules(path: Path) -> tuple[Any, ...]:
    """Read the rules of a file.

    Raises
    ------
    OptionError
        The file is missing, is neither TOML nor Python, or holds what is no rule.
    UnknownNameError
        A TOML rule names an anchor or a side that does not exist.
    """
    if not path.is_file():
        raise OptionError(f"--rules {path}: no such file; give a .toml or a .py file")
    if path.suffix == ".toml":
        return _from_toml(path)
    if path.suffix == ".py":
        return _from_python(path)
    raise OptionError(f"--rules {path}: rules are read from .toml and .py files")


def _from_toml(path: Path) -> tuple[VerticalRule, ...]:
    try:
        import tomllib  # type: ignore[import-not-found]  # Python 3.11 and later
    except ModuleNotFoundError:
        raise OptionError(f"--rules {path}: TOML needs Python 3.11; write a .py file") from None
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"--rules {path}: not valid TOML: {error}") from error
    tables = data.pop("rule", None)
    if data or not isinstance(tables, list) or not tables:
        extra = f", which has {', '.join(sorted(data))} beside them" if data else ""
        raise OptionError(f"--rules {path}: expected one or more [[rule]] tables{extra}")
    return tuple(_vertical(path, number, table) for number, table in enumerate(tables, 1))


def _vertical(path: Path, number: int, table: dict[str, Any]) -> VerticalRule:
    where = f"--rules {path}, rule {number}"
    unknown = sorted(set(table) - set(_FIELDS))
    if unknown:
        raise OptionError(f"{where}: unknown {', '.join(unknown)}; its keys: {', '.join(_FIELDS)}")
    for key in ("anchor", "op"):
        if not isinstance(table.get(key), str) or not table[key]:
            raise OptionError(f"{where}: {key!r} is missing; both 'anchor' and 'op' are needed")
    side = table.get("side", EPILOGUE)
    if table["anchor"] not in ANCHORS:
        raise UnknownNameError("anchor", table["anchor"], ANCHORS)
    if side not in SIDES:
        raise UnknownNameError("side", str(side), SIDES)
    dtypes, ranks = table.get("dtypes", []), table.get("ranks", [0, 16])
    if not isinstance(dtypes, list) or not all(isinstance(d, str) for d in dtypes):
        raise OptionError(f"{where}: dtypes must be a list of names, got {dtypes!r}")
    numbers = isinstance(ranks, list) and all(type(r) is int for r in ranks)
    if not numbers or len(ranks) != 2 or not 0 <= ranks[0] <= ranks[1]:
        raise OptionError(f"{where}: ranks must be [least, most], got {ranks!r}")
    anchors = table.get("anchors", False)
    if not isinstance(anchors, bool):
        raise OptionError(f"{where}: anchors must be true or false, got {anchors!r}")
    if anchors and side != EPILOGUE:
        raise OptionError(f"{where}: anchors = true is for side = {EPILOGUE!r}, got {side!r}")
    return VerticalRule(
        table["anchor"], table["op"], side, str(path), tuple(dtypes), tuple(ranks), anchors
    )


def _from_python(path: Path) -> tuple[Any, ...]:
    try:
        found = runpy.run_path(str(path)).get("RULES")
    except Exception as error:  # the user's own code may fail in any way
        raise OptionError(f"--rules {path}: {type(error).__name__}: {error}") from error
    if not isinstance(found, (tuple, list)) or not found:
        raise OptionError(f"--rules {path}: the file must bind RULES to a list of rules")
    for rule in found:
        if isinstance(rule, VerticalRule):
            continue
        missing = [name for name in _CONTRACT if not hasattr(rule, name)]
        if missing:
            raise OptionError(
                f"--rules {path}: {rule!r} has no {', '.join(missing)}; see tvmfuse.fusion.rule"
            )
        if rule.category not in CATEGORIES:
            raise UnknownNameError("category", str(rule.category), CATEGORIES)
    return tuple(found)
