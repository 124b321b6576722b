"""The rule library: one file a category; the order in a file is the priority."""

from __future__ import annotations

from typing import Any

from tvmfuse.fusion.rules.compound import COMPOUND
from tvmfuse.fusion.rules.diagonal import DIAGONAL
from tvmfuse.fusion.rules.horizontal import HORIZONTAL
from tvmfuse.fusion.rules.vertical import VERTICAL

RULES: dict[str, tuple[Any, ...]] = {
    "compound": COMPOUND,
    "horizontal": HORIZONTAL,
    "diagonal": DIAGONAL,
    "vertical": VERTICAL,
}


def merging_rules() -> tuple[Any, ...]:
    """Rules that rewrite the graph before it is lowered, in order of priority."""
    return (*RULES["compound"], *RULES["horizontal"])
