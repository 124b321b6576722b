"""Models by name, a library a file: torchvision, ``hf:``, ``timm:``, packaged, and our own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

from tvmfuse.frontend.loaded import LoadedReference
from tvmfuse.frontend.zoo import hf_models, own_models, packaged, timm_models, torchvision_models

# Prefix of ``--model`` -> the module that loads what stands behind it.
_PREFIXES: dict[str, ModuleType] = {"hf": hf_models, "timm": timm_models}
_PLAIN: tuple[ModuleType, ...] = (own_models, packaged, torchvision_models)

FORMS = (
    "Also accepted: hf:NAME (transformers), timm:NAME, package.module:callable, file.pt2 and "
    "file.onnx; `pip install 'tvmfuse[zoo]'` brings torchvision, 'tvmfuse[hf]' and "
    "'tvmfuse[timm]' the others."
)


def find(spec: str) -> Callable[..., LoadedReference] | None:
    """Return the loader of a name, or None where the zoo does not know it."""
    prefix, colon, name = spec.partition(":")
    if colon and prefix in _PREFIXES:
        return functools.partial(_PREFIXES[prefix].load, name)
    for library in _PLAIN:
        if spec in library.names():
            return functools.partial(library.load, spec)
    return None


def names() -> list[str]:
    """All names without a prefix."""
    return sorted(name for library in _PLAIN for name in library.names())
