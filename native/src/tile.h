// The core of a product: some rows of x times some panels of W, with all their sums in registers.
//
// W is stored in panels of as many outputs as two vectors have lanes, [outputs / (2 kLanes), inputs, 2 kLanes]. In
// bf16, the outputs o and o + kLanes of a panel lie side by side: the halves of a float's bits, separated by one
// operation each. For dot products, two inputs of an output lie side by side (dots.h): [outputs / (2 kLanes), inputs / 2,
// 2 kLanes, 2]; of integers, those of one input before those of the other.
#pragma once

#include <algorithm>

#include "dots.h"

namespace aerie {

constexpr long kPanel = 2 * kLanes;
constexpr long kSums = kRegisters - 4;  // the others hold a pair of weights, a factor, and a mask or addend
constexpr long kMostRows = kSums / 2;
constexpr long kDepth = 1024;        // inputs, or pairs of them, at a time
constexpr long kStride = kDepth + 16;  // for rows of x: at 4 KB all of them would share a few cache sets

// Few rows take more panels at once, so that sums do not wait for each other.
constexpr long panels_at_once(long rows) { return std::clamp(kSums / (2 * rows), 1L, 4L); }

// Of each panel, to prefetch: into the first cache, or further ahead into the second.
constexpr long bytes_ahead(long panels, bool far) { return far ? 16384 / panels : std::clamp(8192 / panels, 2048L, 4096L); }

template <bool Far>
inline void prefetch(const void* from) {
  __builtin_prefetch(from, 0, Far ? 2 : 3);
}

// With AVX2, multiply-adds have two ports, which shifts and masks would take from them, and shuffles have a third. Of
// several panels the third is the busiest, so there one of both is a shift.
template <int Panels>
void widen(Floats* pair, const uint16_t* from) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i both = load<__m256i>(from);
  const __m256i lower = _mm256_setr_epi32(0x01008080, 0x05048080, 0x09088080, 0x0D0C8080,  // bytes of each float, 80 is 0
                                          0x01008080, 0x05048080, 0x09088080, 0x0D0C8080);
  pair[0] = same_bits<Floats>(Panels == 1 ? _mm256_shuffle_epi8(both, lower) : _mm256_slli_epi32(both, 16));
  pair[1] = same_bits<Floats>(_mm256_blend_epi16(_mm256_setzero_si256(), both, 0xAA));
#else
  const Words both = load<Words>(from);
  pair[0] = same_bits<Floats>(both << 16);
  pair[1] = same_bits<Floats>(both & 0xFFFF0000u);
#endif
}

template <int Panels>
void widen(Floats* pair, const int8_t* from) {
  pair[0] = widened(from);
  pair[1] = widened(from + kLanes);
}

template <int Panels>
void widen(Words* pair, const Pair* from) {
  pair[0] = load<Words>(from);
  pair[1] = load<Words>(from + kLanes);
}

// The kPanel integers of an input as a panel of bf16 has them.
inline void to_bf16(uint16_t* to, const int8_t* from) { store(to, in_pairs(from, from + kLanes)); }

#ifdef AERIE_DOTS
template <int Panels>
void widen(Words* pair, const IntegerPair* from) {
  pair[0] = in_pairs(from);
  pair[1] = in_pairs(from + kLanes);
}

// The same of a pair of inputs.
inline void to_bf16(Pair* to, const IntegerPair* from) {
  store(to, in_pairs(from));
  store(to + kLanes, in_pairs(from + kLanes));
}
#endif

inline float spread(float factor) { return factor; }  // by the multiply-add

inline void add_product(Floats& sum, Floats weights, float factor) { sum += weights * factor; }

// What weights are multiplied by, of how many inputs at once, and what they are in registers.
template <class Weight>
struct Arithmetic {
  using Factor = float;
  using Wide = Floats;
  static constexpr long inputs = 1;
};

template <>
struct Arithmetic<Pair> {
  using Factor = Pair;
  using Wide = Words;
  static constexpr long inputs = 2;
};

#ifdef AERIE_DOTS
template <>
struct Arithmetic<IntegerPair> : Arithmetic<Pair> {};
#endif

template <class Weight>
using Factor = typename Arithmetic<Weight>::Factor;

// Adds to sums [Rows, Panels, kPanel], whose rows are `pitch` apart, or writes there if they are `fresh`, the products of
// `count` inputs, or pairs of them: x [Rows, kStride] and `panels`, which are `apart` from each other. Every sum is over
// the inputs in order, for any number of rows and panels.
template <class Weight, bool Far, int Rows, int Panels>
void tile(float* kept, long pitch, bool fresh, const Factor<Weight>* x, const Weight* panels, long apart, long count) {
  constexpr long step = kPanel * static_cast<long>(sizeof(Weight)), inputs_ahead = bytes_ahead(Panels, Far) / step;
  constexpr bool full = Panels > 1 && 2 * Rows * Panels + Rows + 3 > kRegisters;
  Floats sums[Rows][2 * Panels] = {};
  if (!fresh) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < 2 * Panels; ++v) sums[r][v] = load(kept + r * pitch + v * kLanes);
  }
  // Prefetches from these panels and, near their end, from those that follow them.
  const long last = std::max(count - inputs_ahead, 0L);
  for (long begin = 0, end = last, ahead = inputs_ahead * kPanel; begin < count;
       begin = end, end = count, ahead = Panels * apart - last * kPanel) {
#pragma GCC unroll 2
    for (long i = begin; i < end; ++i) {
#pragma GCC unroll 16
      for (int p = 0; p < Panels; ++p) {  // one after the other, so that only one pair of weights needs registers
        if (full) asm volatile("" ::: "memory");  // read the factors again: kept in registers, they would displace sums
        const Weight* from = panels + p * apart + i * kPanel;
        typename Arithmetic<Weight>::Wide pair[2];
        prefetch<Far>(from + ahead);
        if (step > 64) prefetch<Far>(from + ahead + kLanes);
        widen<Panels>(pair, from);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const auto factor = spread(x[r * kStride + i]);
          add_product(sums[r][2 * p], pair[0], factor);
          add_product(sums[r][2 * p + 1], pair[1], factor);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < 2 * Panels; ++v) store(kept + r * pitch + v * kLanes, sums[r][v]);
}

}  // namespace aerie
