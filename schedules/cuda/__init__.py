"""CUDA templates in order of priority; the last one always applies."""

from tvmfuse.schedules.base import Template
from tvmfuse.schedules.cuda.direct_conv import DirectConvTemplate
from tvmfuse.schedules.cuda.fallback import FallbackTemplate
from tvmfuse.schedules.cuda.gemm import GemmTemplate
from tvmfuse.schedules.cuda.injective import InjectiveTemplate
from tvmfuse.schedules.cuda.reduction import ReductionTemplate
from tvmfuse.schedules.cuda.tensor import TensorTemplate
from tvmfuse.schedules.cuda.window import WindowTemplate

TEMPLATES: tuple[Template, ...] = (
    TensorTemplate(),
    GemmTemplate(),
    DirectConvTemplate(),
    InjectiveTemplate(),
    ReductionTemplate(),
    WindowTemplate(),
    FallbackTemplate(),
)
