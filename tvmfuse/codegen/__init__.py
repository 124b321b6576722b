"""From CUDA text to machine code, with or without a GPU; AArch64 host code on any machine."""

from tvmfuse.codegen.compiler import CudaCompiler, compile_cuda
from tvmfuse.codegen.ptxas import KernelUsage

__all__ = ["CudaCompiler", "KernelUsage", "compile_cuda"]
