"""Matrix units by TensorIR: a warp's fragments of 16 x 16, for float16 and bfloat16.

TVM's own intrinsics have no bfloat16, and importing them costs more than ten seconds of CPU. These
are the same four (load, fill, multiply, store) by the builtins that TVM's CUDA generator prints as
``nvcuda::wmma`` calls, whose layout in registers is the compiler's affair: it makes LDSM and HMMA
of them on sm_75, and MMA over 16 terms from sm_80 on.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

FRAGMENTS = "tvmfuse.fragments"  # attribute of kernels that hold some
EDGE = 16  # of a fragment: 16 x 16 x 16 is the one shape that both types have


def pass_config(functions: Iterable[Any]) -> dict[str, Any]:
    """Configuration of the ``PassContext`` in which kernels are lowered.

    Where one has fragments, TVM 0.27 must not let buffers share their memory: it would give the
    sums (float32) the place of a staged operand (a half), whose pointer then has the wrong type
    ("tvm_access_ptr element type must match the source buffer").
    """
    own = any(isinstance(f, tirx.PrimFunc) and FRAGMENTS in (f.attrs or {}) for f in functions)
    return {"tirx.disable_storage_rewrite": True} if own else {}


def _fragment(buffer: Any, stride: Any) -> Any:
    """Which of a buffer's fragments an offset names."""
    across = stride // EDGE
    return buffer.elem_offset // stride // EDGE * across + buffer.elem_offset % stride // EDGE


def _load(dtype: str, which: str) -> tuple[Any, Any]:
    scope = f"wmma.matrix_{which}"

    @T.prim_func(s_tir=True)
    def desc(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(
            a, (EDGE, EDGE), dtype, align=64, offset_factor=EDGE // 2, scope="shared"
        )
        C = T.match_buffer(c, (EDGE, EDGE), dtype, align=64, offset_factor=EDGE, scope=scope)
        with T.sblock("root"):
            T.reads(A[0:EDGE, 0:EDGE])
            T.writes(C[0:EDGE, 0:EDGE])
            for i, j in T.grid(EDGE, EDGE):
                with T.sblock("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = A[vi, vj]

    @T.prim_func(s_tir=True)
    def impl(a: T.handle, c: T.handle) -> None:
        s1, s0 = T.int32(), T.int32()
        d1, d0 = T.int32(), T.int32()
        A = T.match_buffer(
            a, (EDGE, EDGE), dtype, align=64, offset_factor=EDGE // 2, scope="shared",
            strides=[s1, s0],
        )  # fmt: skip
        C = T.match_buffer(
            c, (EDGE, EDGE), dtype, align=64, offset_factor=EDGE, scope=scope, strides=[d1, d0]
        )
        with T.sblock("root"):
            T.reads(A[0:EDGE, 0:EDGE])
            T.writes(C[0:EDGE, 0:EDGE])
            T.evaluate(
                T.tvm_load_matrix_sync(
                    C.data, EDGE, EDGE, EDGE, _fragment(C, d1), A.access_ptr("r", ptr_type=dtype),
                    s1, "row_major", dtype="void",
                )
            )  # fmt: skip

    return desc, impl


def _fill() -> tuple[Any, Any]:
    zero = tirx.const(0, "float32")

    @T.prim_func(s_tir=True)
    def desc(c: T.handle) -> None:
        C = T.match_buffer(
            c, (EDGE, EDGE), "float32", align=64, offset_factor=EDGE, scope="wmma.accumulator"
        )
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:EDGE, 0:EDGE])
            for i, j in T.grid(EDGE, EDGE):
                with T.sblock("init"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = zero

    @T.prim_func(s_tir=True)
    def impl(c: T.handle) -> None:
        d1, d0 = T.int32(), T.int32()
        C = T.match_buffer(
            c, (EDGE, EDGE), "float32", align=64, offset_factor=EDGE, scope="wmma.accumulator",
            strides=[d1, d0],
        )  # fmt: skip
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:EDGE, 0:EDGE])
            T.evaluate(
                T.tvm_fill_fragment(
                    C.data, EDGE, EDGE, EDGE, _fragment(C, d1), T.float32(0), dtype="void"
                )
            )

    return desc, impl


def _store() -> tuple[Any, Any]:
    @T.prim_func(s_tir=True)
    def desc(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(
            a, (EDGE, EDGE), "float32", align=64, offset_factor=EDGE, scope="wmma.accumulator"
        )
        C = T.match_buffer(
            c, (EDGE, EDGE), "float32", align=64, offset_factor=EDGE // 4, scope="shared"
        )
        with T.sblock("root"):
            T.reads(A[0:EDGE, 0:EDGE])
            T.writes(C[0:EDGE, 0:EDGE])
            for i, j in T.grid(EDGE, EDGE):
                with T.sblock("store"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = A[vi, vj]

    @T.prim_func(s_tir=True)
    def impl(a: T.handle, c: T.handle) -> None:
        s1, s0 = T.int32(), T.int32()
        d1, d0 = T.int32(), T.int32()
        A = T.match_buffer(
            a, (EDGE, EDGE), "float32", align=64, offset_factor=EDGE, scope="wmma.accumulator",
            strides=[d1, d0],
        )  # fmt: skip
        C = T.match_buffer(
            c, (EDGE, EDGE), "float32", align=64, offset_factor=EDGE // 4, scope="shared",
            strides=[s1, s0],
        )  # fmt: skip
        with T.sblock("root"):
            T.reads(A[0:EDGE, 0:EDGE])
            T.writes(C[0:EDGE, 0:EDGE])
            T.evaluate(
                T.tvm_store_matrix_sync(
                    A.data, EDGE, EDGE, EDGE, _fragment(A, d1),
                    C.access_ptr("w", ptr_type="float32"), s1, "row_major", dtype="void",
                )
            )  # fmt: skip

    return desc, impl


def _multiply(dtype: str) -> tuple[Any, Any]:
    @T.prim_func(s_tir=True)
    def desc(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(
            a, (EDGE, EDGE), dtype, align=64, offset_factor=EDGE, scope="wmma.matrix_a"
        )
        B = T.match_buffer(
            b, (EDGE, EDGE), dtype, align=64, offset_factor=EDGE, scope="wmma.matrix_b"
        )
        C = T.match_buffer(
            c, (EDGE, EDGE), "float32", align=64, offset_factor=EDGE, scope="wmma.accumulator"
        )
        with T.sblock("root"):
            T.reads(C[0:EDGE, 0:EDGE], A[0:EDGE, 0:EDGE], B[0:EDGE, 0:EDGE])
            T.writes(C[0:EDGE, 0:EDGE])
            for i, j, k in T.grid(EDGE, EDGE, EDGE):
                with T.sblock(""):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast(
                        "float32", B[vk, vj]
                    )

    @T.prim_func(s_tir=True)
    def impl(a: T.handle, b: T.handle, c: T.handle) -> None:
        a1, a0 = T.int32(), T.int32()
        b1, b0 = T.int32(), T.int32()
        c1, c0 = T.int32(), T.int32()
        A = T.match_buffer(
            a, (EDGE, EDGE), dtype, align=64, offset_factor=EDGE, scope="wmma.matrix_a",
            strides=[a1, a0],
        )  # fmt: skip
        B = T.match_buffer(
            b, (EDGE, EDGE), dtype, align=64, offset_factor=EDGE, scope="wmma.matrix_b",
            strides=[b1, b0],
        )  # fmt: skip
        C = T.match_buffer(
            c, (EDGE, EDGE), "float32", align=64, offset_factor=EDGE, scope="wmma.accumulator",
            strides=[c1, c0],
        )  # fmt: skip
        with T.sblock("root"):
            T.reads(C[0:EDGE, 0:EDGE], A[0:EDGE, 0:EDGE], B[0:EDGE, 0:EDGE])
            T.writes(C[0:EDGE, 0:EDGE])
            T.evaluate(
                T.tvm_mma_sync(
                    C.data, _fragment(C, c1), A.data, _fragment(A, a1), B.data, _fragment(B, b1),
                    C.data, _fragment(C, c1), dtype="void",
                )
            )  # fmt: skip

    return desc, impl


@functools.cache
def fragments(dtype: str) -> dict[str, str]:
    """Names of the registered intrinsics for operands of ``dtype``: a, b, fill, multiply, store."""
    made = {
        "a": _load(dtype, "a"),
        "b": _load(dtype, "b"),
        "fill": _fill(),
        "multiply": _multiply(dtype),
        "store": _store(),
    }
    names = {what: f"tvmfuse_fragment_{what}_{dtype}" for what in made}
    for what, (desc, impl) in made.items():
        TensorIntrin.register(names[what], desc, impl, override=True)
    return names
