// What TVM's kernels use of CUDA's mma.h, over the wmma instructions of PTX, for NVRTC.
//
// CUDA's own header needs a second one, of the compiler's package, that PyTorch's wheels lack.
// Instructions and registers a fragment: PTX ISA, "Warp Level Matrix Multiply-Accumulate" (wmma);
// 16 x 16 x 16, both operands row by row, sums of float32, all loaded from and stored to shared
// memory, where the templates stage them.
#pragma once
#include <cuda_fp16.h>
#include <cuda_bf16.h>

namespace nvcuda {
namespace wmma {
struct row_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major };

template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment;
template <class Use> struct fragment<Use, 16, 16, 16, half, row_major> { unsigned x[8]; };
template <class Use> struct fragment<Use, 16, 16, 16, __nv_bfloat16, row_major> { unsigned x[4]; };
template <> struct fragment<accumulator, 16, 16, 16, float> { float x[8]; };

#define EIGHT(C, v) C(v[0]), C(v[1]), C(v[2]), C(v[3]), C(v[4]), C(v[5]), C(v[6]), C(v[7])
#define FOUR(C, v) C(v[0]), C(v[1]), C(v[2]), C(v[3])
#define OUT(r) "=r"(r)
#define IN(r) "r"(r)
#define FLOAT(r) "f"(r)
#define CHANGED(r) "+f"(r)
#define LOAD(which, T, type, list, registers, stride, address)                                   \
  __device__ __forceinline__ void load_matrix_sync(                                              \
      fragment<matrix_##which, 16, 16, 16, T, row_major>& f, const T* p, unsigned ld) {          \
    unsigned at = __cvta_generic_to_shared(p);                                                   \
    asm volatile("wmma.load." #which ".sync.aligned.row.m16n16k16.shared." type " {" list "}, [" address  \
                 "], " stride ";" : registers(OUT, f.x) : "r"(at), "r"(ld) : "memory");          \
  }
#define LIST8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define LIST4 "%0,%1,%2,%3"
LOAD(a, half, "f16", LIST8, EIGHT, "%9", "%8")
LOAD(b, half, "f16", LIST8, EIGHT, "%9", "%8")
#if __CUDA_ARCH__ >= 800
LOAD(a, __nv_bfloat16, "bf16", LIST4, FOUR, "%5", "%4")
LOAD(b, __nv_bfloat16, "bf16", LIST4, FOUR, "%5", "%4")
#endif

typedef fragment<accumulator, 16, 16, 16, float> sums;
__device__ __forceinline__ void fill_fragment(sums& f, float value) {
  for (int i = 0; i < 8; ++i) f.x[i] = value;
}
__device__ __forceinline__ void store_matrix_sync(float* p, const sums& f, unsigned ld, layout_t) {
  unsigned at = __cvta_generic_to_shared(p);
  asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], "
               "{%2,%3,%4,%5,%6,%7,%8,%9}, %1;" ::"r"(at), "r"(ld), EIGHT(FLOAT, f.x) : "memory");
}
__device__ __forceinline__ void mma_sync(
    sums& d, const fragment<matrix_a, 16, 16, 16, half, row_major>& a,
    const fragment<matrix_b, 16, 16, 16, half, row_major>& b, const sums& c) {
  if (&d != &c) d = c;
  asm volatile("wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {" LIST8 "}, "
               "{%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19,%20,%21,%22,%23}, {" LIST8 "};"
               : EIGHT(CHANGED, d.x) : EIGHT(IN, a.x), EIGHT(IN, b.x));
}
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void mma_sync(
    sums& d, const fragment<matrix_a, 16, 16, 16, __nv_bfloat16, row_major>& a,
    const fragment<matrix_b, 16, 16, 16, __nv_bfloat16, row_major>& b, const sums& c) {
  if (&d != &c) d = c;
  asm volatile("wmma.mma.sync.aligned.row.row.m16n16k16.f32.bf16.bf16.f32 {" LIST8 "}, "
               "{%8,%9,%10,%11}, {%12,%13,%14,%15}, {" LIST8 "};"
               : EIGHT(CHANGED, d.x) : FOUR(IN, a.x), FOUR(IN, b.x));
}
#endif
#undef EIGHT
#undef FOUR
#undef OUT
#undef IN
#undef FLOAT
#undef CHANGED
#undef LOAD
#undef LIST8
#undef LIST4
}  // namespace wmma
}  // namespace nvcuda
