"""The rule library: one file a category; the order in a file is the priority."""

from tvmfuse.fusion.rules.vertical import VERTICAL

__all__ = ["VERTICAL"]
