// The core of a product: some rows of x times some panels of W, with all their sums in registers.
//
// W is stored in panels of as many outputs as two vectors have lanes, [outputs / (2 kLanes), inputs, 2 kLanes]. In
// bf16, the outputs o and o + kLanes of a panel lie side by side: the halves of a float's bits, separated by one
// operation each.
#pragma once

#include <algorithm>

#include "vectors.h"

namespace aerie {

constexpr long kPanel = 2 * kLanes;
constexpr long kSums = kRegisters - 4;  // the others hold a pair of weights, a factor, and a mask or addend
constexpr long kMostRows = kSums / 2;
constexpr long kDepth = 1024;        // inputs at a time
constexpr long kStride = kDepth + 16;  // for rows of x: at 4 KB all of them would share a few cache sets
template <class Weight>
constexpr long kAhead = 2048 / (kPanel * static_cast<long>(sizeof(Weight)));  // inputs to prefetch

// Few rows take more panels at once, so that sums do not wait for each other.
constexpr long panels_at_once(long rows) { return std::clamp(kSums / (2 * rows), 1L, 4L); }

inline void widen(Floats* pair, const uint16_t* from) {
  const Words both = load<Words>(from);
  pair[0] = same_bits<Floats>(both << 16);
  pair[1] = same_bits<Floats>(both & 0xFFFF0000u);
}

inline void widen(Floats* pair, const int8_t* from) {
  pair[0] = widened(from);
  pair[1] = widened(from + kLanes);
}

// Adds to sums [Rows, Panels, kPanel], whose rows are `pitch` apart, the products of `count` inputs: x [Rows, kStride]
// and `panels`, which are `apart` from each other. Every sum is over the inputs in order, for any number of rows and
// panels.
template <class Weight, int Rows, int Panels>
void tile(float* kept, long pitch, const float* x, const Weight* panels, long apart, long count) {
  Floats sums[Rows][2 * Panels];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < 2 * Panels; ++v) sums[r][v] = load(kept + r * pitch + v * kLanes);
  // Prefetches from these panels and, near their end, from those that follow them.
  const long last = std::max(count - kAhead<Weight>, 0L);
  for (long begin = 0, end = last, ahead = kAhead<Weight> * kPanel; begin < count;
       begin = end, end = count, ahead = Panels * apart - last * kPanel) {
#pragma GCC unroll 2
    for (long i = begin; i < end; ++i) {
#pragma GCC unroll 16
      for (int p = 0; p < Panels; ++p) {  // one after the other, so that only one pair of weights needs registers
        const Weight* from = panels + p * apart + i * kPanel;
        Floats pair[2];
        __builtin_prefetch(from + ahead);
        widen(pair, from);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const float factor = x[r * kStride + i];
          sums[r][2 * p] += pair[0] * factor;
          sums[r][2 * p + 1] += pair[1] * factor;
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
