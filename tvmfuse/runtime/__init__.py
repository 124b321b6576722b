"""Artifact format and loader: needs apache-tvm-ffi and NumPy, neither torch nor the compiler."""

from tvmfuse.runtime.load import LoadedModel, load
from tvmfuse.runtime.manifest import Manifest
from tvmfuse.runtime.write import save_artifact

__all__ = ["LoadedModel", "Manifest", "load", "save_artifact"]
