"""Which rules of the library and of the user take part in a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmfuse.errors import UnknownNameError
from tvmfuse.fusion.group import CATEGORIES
from tvmfuse.fusion.rules import RULES
from tvmfuse.fusion.rules.diagonal import DIAGONAL, DiagonalRule
from tvmfuse.fusion.rules.user import load_rules
from tvmfuse.fusion.rules.vertical import VerticalRule


@dataclass(frozen=True)
class RuleSet:
    """The rules of one run.

    Parameters
    ----------
    merging
        Compound and horizontal rules in order of priority, those of the user first.
    vertical
        Vertical rules in order of priority, those of the user first.
    off
        Vertical rules that are switched off: what they name joins by no other rule either.
    diagonal
        Rules of what is written straight into where it is wanted.
    """

    merging: tuple[Any, ...]
    vertical: tuple[VerticalRule, ...]
    off: tuple[VerticalRule, ...] = ()
    diagonal: tuple[DiagonalRule, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All rules that take part, in order of priority."""
        return tuple(rule.name for rule in (*self.merging, *self.diagonal, *self.vertical))


def select_rules(
    no_rule: Sequence[str] = (), only: Sequence[str] = (), file: Path | None = None
) -> RuleSet:
    """Choose rules by name or category.

    Parameters
    ----------
    no_rule
        Names and categories that are switched off.
    only
        Names and categories that alone stay on; all when empty.
    file
        Rules of the user, see :mod:`tvmfuse.fusion.rules.user`.

    Raises
    ------
    UnknownNameError
        A name is neither a rule's nor a category's.
    OptionError
        The file cannot be read as rules.
    """
    own = load_rules(file) if file is not None else ()
    everything = (*own, *(rule for rules in RULES.values() for rule in rules))
    known = {*CATEGORIES, *(rule.name for rule in everything)}
    for name in (*no_rule, *only):
        if name not in known:
            raise UnknownNameError("rule or category", name, known, hint="(see docs/rules.md)")

    def is_on(rule: Any) -> bool:
        words = {rule.name, rule.category}
        return not words.intersection(no_rule) and (not only or bool(words.intersection(only)))

    vertical = [r for r in everything if isinstance(r, VerticalRule)]
    return RuleSet(
        merging=tuple(_merging(own, is_on)),
        vertical=tuple(r for r in vertical if is_on(r)),
        off=tuple(r for r in vertical if not is_on(r)),
        diagonal=tuple(r for r in DIAGONAL if is_on(r)),
    )


def _merging(own: Iterable[Any], is_on: Any) -> Iterable[Any]:
    """Merging rules in the order in which they are tried."""
    library = (*RULES["compound"], *RULES["horizontal"])
    for rule in (*own, *library):
        if not isinstance(rule, VerticalRule) and is_on(rule):
            yield rule
