// Halves and matrix fragments for emulator.h, by their definition.
#pragma once

static inline float emu_widen_half(uint16_t h) {
  unsigned sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
  if (!exponent) return (sign ? -1.0f : 1.0f) * ldexpf((float)mantissa, -24);
  unsigned bits = sign | (exponent == 31 ? 0x7F800000u : (exponent + 112) << 23) | mantissa << 13;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static inline uint16_t emu_round_half(float value) {  // to nearest, ties to even
  unsigned bits;
  memcpy(&bits, &value, 4);
  uint16_t sign = bits >> 16 & 0x8000;
  bits &= 0x7FFFFFFFu;
  if (bits > 0x7F800000u) return sign | 0x7E00;
  if (bits >= 0x477FF000u) return sign | 0x7C00;  // 65520 and more
  if (bits < 0x38800000u) return sign | (uint16_t)nearbyintf(ldexpf(fabsf(value), 24));
  bits += 0xFFF + (bits >> 13 & 1);
  return sign | (uint16_t)((bits >> 13) - (112 << 10));
}
static inline float emu_widen_brain(uint16_t b) {
  unsigned bits = (unsigned)b << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static inline uint16_t emu_round_brain(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bits >> 16 | 0x40;
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

#define EMU_HALF(name, widen, round)                                        \
  struct name {                                                             \
    uint16_t bits;                                                          \
    name() = default;                                                       \
    name(float value) : bits(round(value)) {}                               \
    explicit name(const emu::Ref<name>& at) : bits(at.load().bits) {}       \
    operator float() const { return widen(bits); }                          \
  };                                                                        \
  EMU_VECTORS(name)                                                         \
  static inline name max(name a, name b) { return max((float)a, (float)b); } \
  static inline name min(name a, name b) { return min((float)a, (float)b); } \
  static inline unsigned __pack_##name##2(name a, name b) {                 \
    return (unsigned)b.bits << 16 | a.bits;                                 \
  }
EMU_HALF(half, emu_widen_half, emu_round_half)
EMU_HALF(nv_bfloat16, emu_widen_brain, emu_round_brain)
static inline half __float2half_rn(float x) { return x; }
static inline nv_bfloat16 __float2bfloat16_rn(float x) { return x; }

// A lane's part of a fragment: element ``lane + 32 * i`` of 16 x 16, row by row. Which it is on a
// device nobody may rely on.
namespace nvcuda {
namespace wmma {
struct row_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major };
template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
  static_assert(M == 16 && N == 16 && K == 16, "one shape");
  float own[8];
};
template <class T> void emu_aligned(const emu::Pointer<T>& p, unsigned ld, const char* what) {
  if ((p.p - p.m->base) % 32 || ld * sizeof(T) % 16) {
    emu::fault(std::string(what) + " at byte " + std::to_string(p.p - p.m->base) + " of " +
               p.m->name + " with rows of " + std::to_string(ld) + ": not aligned" + emu::where());
  }
}
template <class F, class T> void load_matrix_sync(F& f, emu::Pointer<T> p, unsigned ld) {
  emu_aligned(p, ld, "load_matrix_sync");
  for (int i = 0; i < 8; ++i) {
    int e = emu::current % 32 + 32 * i;
    f.own[i] = (float)p[e / 16 * ld + e % 16].load();
  }
  emu::wait(emu::kWarpBarrier);
}
template <class F> void fill_fragment(F& f, float value) {
  for (float& x : f.own) x = value;
}
template <class F> void store_matrix_sync(emu::Pointer<float> p, const F& f, unsigned ld, layout_t) {
  emu_aligned(p, ld, "store_matrix_sync");
  for (int i = 0; i < 8; ++i) {
    int e = emu::current % 32 + 32 * i;
    p[e / 16 * ld + e % 16] = f.own[i];
  }
  emu::wait(emu::kWarpBarrier);
}
struct Operands { const float *a, *b; };
template <class D, class A, class B, class C>
void mma_sync(D& d, const A& a, const B& b, const C& c) {
  int me = emu::current, warp = me / 32 * 32;
  Operands mine{a.own, b.own};
  emu::fibers[me].slot = (uint64_t)&mine;
  emu::wait(emu::kWarpBarrier);
  if (warp + 32 > (int)emu::fibers.size()) emu::fault("mma_sync in an incomplete warp" + emu::where());
  float sums[8];
  for (int i = 0; i < 8; ++i) {
    int e = me % 32 + 32 * i, row = e / 16, column = e % 16;
    sums[i] = c.own[i];
    for (int k = 0; k < 16; ++k) {
      int at = row * 16 + k, bt = k * 16 + column;
      sums[i] += ((Operands*)emu::fibers[warp + at % 32].slot)->a[at / 32] *
                 ((Operands*)emu::fibers[warp + bt % 32].slot)->b[bt / 32];
    }
  }
  emu::wait(emu::kWarpBarrier);
  memcpy(d.own, sums, sizeof(sums));
}
}  // namespace wmma
}  // namespace nvcuda
