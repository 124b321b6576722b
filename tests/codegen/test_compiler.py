"""CUDA text becomes a cubin, and what its kernels take is read off the assembler's log."""

import pytest

from tvmfuse.codegen import toolkits
from tvmfuse.codegen.compiler import compile_cuda
from tvmfuse.codegen.ptxas import KernelUsage, parse_usage
from tvmfuse.codegen.toolkits import find_toolkit
from tvmfuse.errors import BuildError

TEXT = """
extern "C" __global__ void __launch_bounds__(128) twice(float* a) {
  __shared__ float part[128];
  part[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  a[threadIdx.x] = part[127 - threadIdx.x] * 2.f;
}
"""
CUBIN_MACHINE = 190  # EM_CUDA


def toolkit_or_skip(cc):
    try:
        return find_toolkit(cc)
    except BuildError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("arch", "cc"), [("sm_75", 75), ("sm_80", 80), ("sm_90a", 90)])
def test_text_becomes_machine_code_of_the_architecture(arch, cc):
    toolkit_or_skip(cc)
    cubin = compile_cuda(TEXT, arch, cc)
    assert cubin.code[:4] == b"\x7fELF"
    assert int.from_bytes(cubin.code[18:20], "little") == CUBIN_MACHINE
    (kernel,) = cubin.kernels
    assert kernel.name == "twice" and kernel.shared_bytes == 512
    assert kernel.registers > 0 and kernel.spill_bytes == 0
    assert compile_cuda(TEXT, arch, cc) is cubin


def test_text_that_does_not_compile_is_refused_with_the_log():
    toolkit_or_skip(75)
    with pytest.raises(BuildError, match="undefined_name"):
        compile_cuda('extern "C" __global__ void f(float* a) { *a = undefined_name; }', "sm_75", 75)


def test_without_a_compiler_the_packages_are_named(monkeypatch):
    monkeypatch.setattr(toolkits, "_first", lambda paths: None)
    monkeypatch.setattr(toolkits.shutil, "which", lambda name: None)
    with pytest.raises(BuildError, match=r"sm_75 need NVRTC .*nvidia-cuda-nvrtc"):
        find_toolkit(75)
    with pytest.raises(BuildError, match=r"sm_53 need the compiler of CUDA 12.*-cu12"):
        find_toolkit(53)


def test_spills_stack_and_dynamic_names_are_read():
    log = (
        "ptxas info    : 0 bytes gmem\n"
        "ptxas info    : Compiling entry function 'f_kernel' for 'sm_75'\n"
        "ptxas info    : Function properties for f_kernel\n"
        "    24 bytes stack frame, 16 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 8192 bytes smem, 368 bytes cmem[0]\n"
        "ptxas info    : Compiling entry function 'g' for 'sm_75'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 10 registers, 360 bytes cmem[0]\n"
    )
    assert parse_usage(log) == (KernelUsage("f_kernel", 255, 8192, 24, 24), KernelUsage("g", 10))
