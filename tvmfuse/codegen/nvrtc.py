"""NVRTC by its C interface: CUDA text to a cubin, in this process.

Libraries of CUDA 12 and 13 may be used side by side, which no Python binding allows.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from tvmfuse.codegen.toolkits import Toolkit
from tvmfuse.errors import BuildError

# TVM's preamble asks for two headers of CCCL, hundreds of files, for what these lines give.
_TYPES = "".join(
    f"typedef {c} {name}_t;\n"
    for name, c in (
        ("int8", "signed char"), ("uint8", "unsigned char"),
        ("int16", "short"), ("uint16", "unsigned short"),
        ("int32", "int"), ("uint32", "unsigned int"),
        ("int64", "long long"), ("uint64", "unsigned long long"),
    )
)  # fmt: skip
_TRAITS = """
template <class T, T v> struct integral_constant { static constexpr T value = v; };
template <class A, class B> struct is_same : integral_constant<bool, false> {};
template <class A> struct is_same<A, A> : integral_constant<bool, true> {};
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
template <class T> struct is_floating_point
    : integral_constant<bool, is_same_v<T, float> || is_same_v<T, double>> {};
template <class T> struct is_integral
    : integral_constant<bool, __is_integral(T)> {};
template <class T> struct is_signed : integral_constant<bool, T(-1) < T(0)> {};
template <class T> struct is_unsigned : integral_constant<bool, !(T(-1) < T(0))> {};
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
"""


def _inside(text: str) -> str:
    return f"#pragma once\nnamespace cuda {{ namespace std {{\n{text}\n}} }}\n"


HEADERS = {
    "cuda/std/cstdint": _inside(_TYPES),
    "mma.h": (Path(__file__).parent / "fragments.h").read_text(encoding="utf-8"),
    "cuda/std/type_traits": _inside(_TRAITS.replace("__is_integral(T)", "(T(3) / T(2) == T(1))")),
}
# Constants that CUDA's own headers define for nvcc only.
_PREAMBLE = """
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
"""


@functools.cache
def _library(path: Path) -> Any:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"NVRTC cannot be loaded: {error}") from error
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def compile_nvrtc(toolkit: Toolkit, code: str, arch: str) -> tuple[bytes, str]:
    """Compile to a cubin.

    Returns
    -------
    bytes, str
        The cubin, and the compiler's log with what ``ptxas -v`` says.

    Raises
    ------
    BuildError
        The text does not compile; the message holds the log.
    """
    library = _library(toolkit.path)
    names = (ctypes.c_char_p * len(HEADERS))(*[name.encode() for name in HEADERS])
    texts = (ctypes.c_char_p * len(HEADERS))(*[text.encode() for text in HEADERS.values()])
    program = ctypes.c_void_p()
    source = (_PREAMBLE + code).encode()
    _check(
        library,
        library.nvrtcCreateProgram(
            ctypes.byref(program), source, b"kernels.cu", len(HEADERS), texts, names
        ),
    )
    try:
        options = [f"--gpu-architecture={arch}", "-default-device", "--std=c++17",
                   "--ptxas-options=-v"]  # fmt: skip
        if toolkit.include is not None:
            options.append(f"-I{toolkit.include}")
        given = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        result = library.nvrtcCompileProgram(program, len(options), given)
        log = _text(library, program, "ProgramLog").decode(errors="replace").rstrip("\0")
        if result:
            raise BuildError(f"NVRTC refuses the kernels for {arch}:\n{log[:4000]}")
        return _text(library, program, "CUBIN"), log
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(library: Any, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    held = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, held))
    return held.raw


def _check(library: Any, code: int) -> None:
    if code:
        raise BuildError(f"NVRTC: {library.nvrtcGetErrorString(code).decode()}")
