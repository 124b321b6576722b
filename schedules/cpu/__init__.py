"""CPU templates in order of priority; the last one always applies."""

from tvmfuse.schedules.base import Template
from tvmfuse.schedules.cpu import dot4, intrinsics  # noqa: F401  (register rules with TVM)
from tvmfuse.schedules.cpu.attention import AttentionTemplate
from tvmfuse.schedules.cpu.batch_matmul import BatchMatmulTemplate
from tvmfuse.schedules.cpu.contraction import ContractionTemplate
from tvmfuse.schedules.cpu.dot import DotTemplate
from tvmfuse.schedules.cpu.fallback import FallbackTemplate
from tvmfuse.schedules.cpu.injective import InjectiveTemplate
from tvmfuse.schedules.cpu.normed_dense import NormedDenseTemplate
from tvmfuse.schedules.cpu.outer_reduction import OuterReductionTemplate
from tvmfuse.schedules.cpu.product_chain import ProductChainTemplate
from tvmfuse.schedules.cpu.row_reduction import RowReductionTemplate
from tvmfuse.schedules.cpu.tiles import TileTemplate
from tvmfuse.schedules.cpu.transpose import TransposeTemplate
from tvmfuse.schedules.cpu.winograd import WinogradTemplate
from tvmfuse.schedules.cpu.winograd_rows import WinogradRowsTemplate

TEMPLATES: tuple[Template, ...] = (
    NormedDenseTemplate(),
    TileTemplate(),
    ContractionTemplate(),
    WinogradTemplate(),
    WinogradRowsTemplate(),
    AttentionTemplate(),
    BatchMatmulTemplate(),
    DotTemplate(),
    OuterReductionTemplate(),
    RowReductionTemplate(),
    TransposeTemplate(),
    InjectiveTemplate(),
    ProductChainTemplate(),
    FallbackTemplate(),
)
