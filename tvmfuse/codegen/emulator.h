// One CUDA thread block at a time on a CPU: threads are fibers, barriers are where they wait.
//
// Shared and global memory is reached through checked pointers. What is reported: accesses outside
// of a buffer; two threads at one place of shared memory without a barrier between them, one of
// them changing it; two blocks likewise in global memory; a barrier that not every thread reaches.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short

struct dim3 { int x, y, z; };
static dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emu {
enum State { kReady, kBlockBarrier, kWarpBarrier, kDone };
struct Fiber {
  ucontext_t start;
  jmp_buf place;
  bool started;
  std::vector<char> stack;
  dim3 thread;
  State state;
  uint64_t slot;
  int warp_epoch;
};
static std::vector<Fiber> fibers;
static int current;
static jmp_buf scheduler;
static int epoch, block_number;
static std::string report;
static int faults;
static bool reverse_order;

static void fault(const std::string& text) {  // three of each kind are told
  static int told[256];
  if (!faults) memset(told, 0, sizeof(told));
  ++faults;
  if (told[(unsigned char)text[0]]++ < 3) report += text + "\n";
}
static std::string where() {
  return " by thread " + std::to_string(current) + " of block " + std::to_string(block_number);
}

// Who touched one granule last. Threads of one warp are also apart after a warp barrier.
struct Mark { int thread = -1, epoch = -1, warp_epoch = -1, block = -1; };
struct Granule { Mark writer, reader, other_reader; };
struct Memory {
  const char* name;
  char* base;
  size_t bytes, granule;
  bool shared;
  std::vector<Granule> shadow;
  Memory(const char* n, void* b, size_t size, size_t g, bool s)
      : name(n), base((char*)b), bytes(size), granule(g), shared(s), shadow((size + g - 1) / g) {}
};
static Mark mark() { return {current, epoch, fibers[current].warp_epoch, block_number}; }
static bool apart(const Memory& m, const Mark& a) {
  if (a.thread < 0) return true;
  if (!m.shared) return a.block == block_number;
  if (a.thread == current || a.block != block_number || a.epoch != epoch) return true;
  return a.thread / 32 == current / 32 && a.warp_epoch != fibers[current].warp_epoch;
}
static bool touch(Memory* m, const char* p, size_t bytes, const void* value) {
  if (p < m->base || p + bytes > m->base + m->bytes) {
    fault(std::string(value ? "write" : "read") + " outside of " + m->name + ": byte " +
          std::to_string((long)(p - m->base)) + " of " + std::to_string(m->bytes) + where());
    return false;
  }
  bool changes = value && memcmp(p, value, bytes) != 0;
  size_t first = (p - m->base) / m->granule, last = (p - m->base + bytes - 1) / m->granule;
  for (size_t g = first; g <= last; ++g) {
    Granule& s = m->shadow[g];
    bool clash = value ? changes && !(apart(*m, s.writer) && apart(*m, s.reader) &&
                                      apart(*m, s.other_reader))
                       : !apart(*m, s.writer);
    if (clash) {
      fault(std::string("race at byte ") + std::to_string(g * m->granule) + " of " + m->name +
            (value ? " written" : " read") + where() + ", no barrier since another touched it");
    }
    if (changes) s.writer = mark();
    if (!value) {
      if (s.reader.thread != current) s.other_reader = s.reader;
      s.reader = mark();
    }
  }
  return true;
}

// What a value in memory converts to beside its own type: halves to float, as CUDA's do.
template <class R, class T, bool = std::is_class<T>::value && sizeof(T) == 2> struct Widened {};
template <class R, class T> struct Widened<R, T, true> {
  operator float() const { return (float)((const R*)this)->load(); }
};
template <class T> struct Pointer;
template <class T> struct Ref : Widened<Ref<T>, T> {
  Memory* m;
  char* p;
  T load() const {
    T value;
    memset((void*)&value, 0, sizeof(T));
    if (touch(m, p, sizeof(T), nullptr)) memcpy((void*)&value, p, sizeof(T));
    return value;
  }
  operator T() const { return load(); }
  Ref& operator=(const T& value) {
    if (touch(m, p, sizeof(T), &value)) memcpy(p, (const void*)&value, sizeof(T));
    return *this;
  }
  Ref& operator=(const Ref& other) { return *this = other.load(); }
  Pointer<T> operator&() const { return {m, p}; }
  Ref(Memory* memory, char* place) : m(memory), p(place) {}
  Ref(const Ref&) = default;
};
template <class T> struct Pointer {
  Memory* m;
  char* p;
  template <class I> Pointer operator+(I i) const { return {m, p + (int64_t)i * (int64_t)sizeof(T)}; }
  template <class I> Ref<T> operator[](I i) const { return {m, p + (int64_t)i * (int64_t)sizeof(T)}; }
  Ref<T> operator*() const { return {m, p}; }
};
template <class U, class T> Pointer<U> cast(Pointer<T> x) { return {x.m, x.p}; }
template <class U, class T> U* cast(T* x) { return (U*)x; }

// Shared memory is full of NaN when a block starts.
static std::vector<Memory*> shared_memories;
template <class T, size_t N> struct Shared {
  alignas(64) char data[N * sizeof(T)];
  Memory memory;
  explicit Shared(const char* name)
      : memory(name, data, N * sizeof(T), std::min(sizeof(T), (size_t)4), true) {
    memset(data, 0xFF, sizeof(data));
    shared_memories.push_back(&memory);
  }
  operator Pointer<T>() { return {&memory, data}; }
  template <class I> Ref<T> operator[](I i) { return Pointer<T>(*this)[i]; }
  template <class I> Pointer<T> operator+(I i) { return Pointer<T>(*this) + i; }
};
template <class U, class T, size_t N> Pointer<U> cast(Shared<T, N>& x) {
  return cast<U>(Pointer<T>(x));
}

static void wait(State state) {
  fibers[current].state = state;
  if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
  threadIdx = fibers[current].thread;
}
static void (*body)();
static void entry() {
  body();
  fibers[current].state = kDone;
  _longjmp(scheduler, 1);
}
static void resume(int i) {
  current = i;
  Fiber& f = fibers[i];
  threadIdx = f.thread;
  if (_setjmp(scheduler)) return;
  if (f.started) _longjmp(f.place, 1);
  f.started = true;
  setcontext(&f.start);
}
static bool release_warps() {
  bool moved = false;
  int n = (int)fibers.size();
  for (int w = 0; w < n; w += 32) {
    int end = std::min(n, w + 32);
    bool all = true;
    for (int i = w; i < end; ++i) all &= fibers[i].state == kWarpBarrier || fibers[i].state == kDone;
    for (int i = w; all && i < end; ++i) {
      if (fibers[i].state != kWarpBarrier) continue;
      fibers[i].state = kReady;
      fibers[i].warp_epoch++;
      moved = true;
    }
  }
  return moved;
}
static void run_block() {
  int n = (int)fibers.size();
  epoch = 0;
  for (Memory* m : shared_memories) {
    memset(m->base, 0xFF, m->bytes);
    std::fill(m->shadow.begin(), m->shadow.end(), Granule());
  }
  for (int i = 0; i < n; ++i) {
    Fiber& f = fibers[i];
    f.state = kReady;
    f.started = false;
    f.warp_epoch = 0;
    f.thread = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
    getcontext(&f.start);
    f.start.uc_stack.ss_sp = f.stack.data();
    f.start.uc_stack.ss_size = f.stack.size();
    f.start.uc_link = nullptr;
    makecontext(&f.start, entry, 0);
  }
  for (;;) {
    bool moved = false;
    for (int k = 0; k < n; ++k) {
      int i = reverse_order ? n - 1 - k : k;
      if (fibers[i].state == kReady) { resume(i); moved = true; }
    }
    moved |= release_warps();
    int done = 0, waiting = 0;
    for (Fiber& f : fibers) { done += f.state == kDone; waiting += f.state == kBlockBarrier; }
    if (done == n) return;
    if (waiting && waiting + done == n) {
      if (done) {
        fault("barrier reached by " + std::to_string(waiting) + " threads of " + std::to_string(n));
      }
      epoch++;
      for (Fiber& f : fibers) if (f.state == kBlockBarrier) f.state = kReady;
      moved = true;
    }
    if (!moved) {
      fault("threads wait at different barriers in block " + std::to_string(block_number));
      return;
    }
  }
}
static void run_grid(const int* grid, const int* block, int backwards) {
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  reverse_order = backwards;
  fibers.resize(block[0] * block[1] * block[2]);
  for (Fiber& f : fibers) f.stack.resize(256 << 10);
  block_number = 0;
  for (int z = 0; z < grid[2]; ++z)
    for (int y = 0; y < grid[1]; ++y)
      for (int x = 0; x < grid[0]; ++x) {
        blockIdx = {x, y, z};
        run_block();
        ++block_number;
      }
}
template <class T> T shuffle(T value, int source) {
  int me = current, warp = me / 32 * 32;
  uint64_t bits = 0;
  memcpy(&bits, (const void*)&value, sizeof(T));
  fibers[me].slot = bits;
  wait(kWarpBarrier);
  int from = warp + (source & 31);
  bits = fibers[from < (int)fibers.size() ? from : me].slot;
  T result;
  memcpy((void*)&result, &bits, sizeof(T));
  wait(kWarpBarrier);
  return result;
}
}  // namespace emu

static inline void __syncthreads() { emu::wait(emu::kBlockBarrier); }
static inline void __syncwarp(unsigned = 0) { emu::wait(emu::kWarpBarrier); }
static inline unsigned __activemask() { return 0xffffffffu; }
template <class T> T __shfl_sync(unsigned, T v, int l, int w = 32) {
  return emu::shuffle(v, emu::current % 32 / w * w + l % w);
}
template <class T> T __shfl_down_sync(unsigned, T v, int o, int w = 32) {
  int l = emu::current % 32;
  return emu::shuffle(v, l % w + o < w ? l + o : l);
}
template <class T> T __shfl_up_sync(unsigned, T v, int o, int w = 32) {
  int l = emu::current % 32;
  return emu::shuffle(v, l % w - o >= 0 ? l - o : l);
}

#define EMU_VECTORS(T)                                                    \
  struct T##2 { T x, y; };                                                \
  struct T##3 { T x, y, z; };                                             \
  struct T##4 { T x, y, z, w; };                                          \
  static inline T##2 make_##T##2(T a, T b) { return {a, b}; }             \
  static inline T##3 make_##T##3(T a, T b, T c) { return {a, b, c}; }     \
  static inline T##4 make_##T##4(T a, T b, T c, T d) { return {a, b, c, d}; }
EMU_VECTORS(float)
EMU_VECTORS(int)
EMU_VECTORS(double)
EMU_VECTORS(uint)
EMU_VECTORS(ushort)
EMU_VECTORS(uchar)
EMU_VECTORS(char)
EMU_VECTORS(short)
#define EMU_ORDER(T)                                              \
  static inline T max(T a, T b) { return a < b || a != a ? b : a; } \
  static inline T min(T a, T b) { return b < a || a != a ? b : a; }
EMU_ORDER(float)
EMU_ORDER(double)
EMU_ORDER(int)
EMU_ORDER(int64_t)
#define __expf expf
#define __logf logf
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#include "emulator_halves.h"
