"""Compile PyTorch models to fused, tuned, verified and importable modules with TVM.

>>> import tvmfuse
>>> model = tvmfuse.load("build/resnet50-llvm")  # doctest: +SKIP
>>> y = model(x)  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Verb -> the module that has it. They are imported on first use, so that a machine without the
# compiler can load artifacts, and so that importing this package costs nothing.
_VERBS = {
    "load": "tvmfuse.fallback",
    "compile": "tvmfuse.api",
    "tune": "tvmfuse.api",
    "verify_artifact": "tvmfuse.api",
}

__all__ = ["__version__", "compile", "load", "tune", "verify_artifact"]


def __getattr__(name: str) -> Any:
    """Import a public verb on first use."""
    if name not in _VERBS:
        raise AttributeError(f"module 'tvmfuse' has no attribute {name!r}")
    return getattr(import_module(_VERBS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_VERBS})
