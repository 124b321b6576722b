"""Tensor-core instructions counted in machine code, beside NVIDIA's own disassembler."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tvmfuse.codegen import compile_cuda
from tvmfuse.codegen.sass import tensor_instructions
from tvmfuse.codegen.toolkits import find_toolkit
from tvmfuse.errors import TvmfuseError

SOURCE = """
#include <mma.h>
extern "C" __global__ void plain(float* x) { x[threadIdx.x] *= 2.0f; }
extern "C" __global__ void matrix(half* a, float* c) {
  using namespace nvcuda::wmma;
  __shared__ half staged[256];
  __shared__ float sums[256];
  for (int i = threadIdx.x; i < 256; i += 32) staged[i] = a[i];
  __syncthreads();
  fragment<matrix_a, 16, 16, 16, half, row_major> x;
  fragment<matrix_b, 16, 16, 16, half, row_major> y;
  fragment<accumulator, 16, 16, 16, float> z;
  fill_fragment(z, 0.0f);
  load_matrix_sync(x, staged, 16);
  load_matrix_sync(y, staged, 16);
  mma_sync(z, x, y, z);
  store_matrix_sync(sums, z, 16, mem_row_major);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += 32) c[i] = sums[i];
}
"""


@pytest.mark.parametrize(("arch", "cc"), [("sm_75", 75), ("sm_80", 80), ("sm_90a", 90)])
def test_count_is_that_of_the_disassembler(arch, cc, tmp_path):
    try:
        find_toolkit(cc)
    except TvmfuseError as error:
        pytest.skip(str(error))
    cubin = compile_cuda(SOURCE, arch, cc)
    found = tensor_instructions(cubin.code, cc)
    assert found["plain"] == 0 and found["matrix"] in (2, 4)
    assert {k.name: k.tensor_instructions for k in cubin.kernels} == found
    tool = disassembler()
    if tool is None:
        pytest.skip("no nvdisasm to compare with")
    path = tmp_path / "x.cubin"
    path.write_bytes(cubin.code)
    listing = subprocess.run([tool, str(path)], capture_output=True, text=True, check=True).stdout
    assert len(re.findall(r"\bHMMA\.", listing)) == found["matrix"]


def disassembler():
    beside = shutil.which("nvdisasm")
    spec = importlib.util.find_spec("triton")
    if beside or spec is None:
        return beside
    path = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    return str(path) if path.is_file() else None
