"""Models of which only parts can be compiled: PyTorch runs the others, between the compiled ones.

``load`` opens artifacts of both kinds; the second kind needs PyTorch where it is served.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmfuse.runtime import load as load_whole
from tvmfuse.runtime.manifest import is_segmented

__all__ = ["load"]


def load(directory: str | Path, threads: int | None = None, verify_hashes: bool = True) -> Any:
    """Open an artifact.

    Parameters
    ----------
    directory
        The artifact's folder.
    threads
        Threads for each kernel of this model; by default the CPUs this process may use. Models
        with different counts may live in one process.
    verify_hashes
        Compare the sha256 of every file with the manifest. Sizes are always compared.

    Returns
    -------
    LoadedModel or SegmentedModel
        Callable with the arguments of the original module. The second is what a model compiled
        with ``--fallback eager`` becomes when PyTorch has to run some of it.

    Raises
    ------
    ArtifactError
        A file is missing, truncated or altered, or versions do not fit, or the CPU lacks features,
        or the artifact needs PyTorch and it is not installed.
    OptionError
        ``threads`` cannot be had here.
    """
    if not is_segmented(Path(directory)):
        return load_whole(directory, threads, verify_hashes)
    from tvmfuse.fallback.model import load_segmented

    return load_segmented(Path(directory), threads, verify_hashes)
