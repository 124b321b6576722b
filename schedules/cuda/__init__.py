"""CUDA templates in order of priority; the last one always applies."""

from tvmfuse.schedules.base import Template
from tvmfuse.schedules.cuda.fallback import FallbackTemplate
from tvmfuse.schedules.cuda.gemm import GemmTemplate
from tvmfuse.schedules.cuda.injective import InjectiveTemplate
from tvmfuse.schedules.cuda.tensor import TensorTemplate

TEMPLATES: tuple[Template, ...] = (
    TensorTemplate(),
    GemmTemplate(),
    InjectiveTemplate(),
    FallbackTemplate(),
)
