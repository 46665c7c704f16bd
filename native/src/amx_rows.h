// The sums of AMX's tiles by vectors, for a few rows, for which tiles take longer than memory does: equal to the last
// bit. AMX adds up the first inputs of a tile's pairs and the second ones, each in order, then both,
// then that to the sum, with denormal numbers as zeros (Intel's manual, TDPBF16PS). Products of bf16 numbers are exact
// in fp32, so multiply-adds round as AMX does.
#pragma once

#include "amx.h"
#include "tile.h"

#ifdef AERIE_AMX
namespace aerie {

// Denormal numbers are zeros, as long as this exists.
class NoDenormals {
 public:
  NoDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~NoDenormals() { _mm_setcsr(before_); }
  NoDenormals(const NoDenormals&) = delete;
  NoDenormals& operator=(const NoDenormals&) = delete;

 private:
  unsigned before_;
};

// The first and the second inputs of pairs, of as many outputs as there are lanes.
struct Weights {
  Floats first, second;
};

inline Weights pairs(const int8_t* from) { return {widened(from), widened(from + kLanes)}; }

inline Weights pairs(const uint16_t* from) {
  const Words both = load<Words>(from);
  return {same_bits<Floats>(both << 16), same_bits<Floats>(both & 0xFFFF0000u)};
}

// Sums [Rows, Panels * kPanel] of panels that lie `apart`, of x [Rows, tiles * kTileInputs], rounded. Of each tile one
// panel comes after the other, or two at once where one alone has too few sums to fill the units.
template <int Rows, int Panels, class Weight>
void sum_rows(float* sums, const float* x, const Weight* panels, long apart, long tiles) {
  constexpr bool light = Rows == 1 || (Rows == 2 && sizeof(Weight) == 1);
  constexpr int together = Panels > 1 && light ? 2 : 1, halves = 2 * together;
  constexpr long ahead = 12288 / Panels / static_cast<long>(sizeof(Weight)), pair = 2 * kPanel;
  const long inputs = tiles * kTileInputs;
  Floats whole[Rows][2 * Panels] = {};
  for (long tile = 0; tile < tiles; ++tile) {
    // Near the panels' end, of those that follow them.
    const long next = ahead + (tile * kTileInputs / 2 * pair + ahead < apart ? 0 : (Panels - 1) * apart);
#pragma GCC unroll 4
    for (int begin = 0; begin < Panels; begin += together) {
      Floats first[Rows][halves] = {}, second[Rows][halves] = {};
#pragma GCC unroll 2
      for (long i = tile * kTileInputs; i < (tile + 1) * kTileInputs; i += 2) {
#pragma GCC unroll 2
        for (int panel = 0; panel < together; ++panel) {
          const Weight* const from = panels + (begin + panel) * apart + i / 2 * pair;
          __builtin_prefetch(from + next);
          if (sizeof(Weight) > 1) __builtin_prefetch(from + next + pair / 2);
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
            const Weights weights = pairs(from + half * 2 * kLanes);
#pragma GCC unroll 4
            for (int row = 0; row < Rows; ++row) {
              first[row][2 * panel + half] += weights.first * x[row * inputs + i];
              second[row][2 * panel + half] += weights.second * x[row * inputs + i + 1];
            }
          }
        }
      }
#pragma GCC unroll 4
      for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 4
        for (int v = 0; v < halves; ++v) whole[row][2 * begin + v] += first[row][v] + second[row][v];
    }
  }
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < 2 * Panels; ++v) store(sums + (row * 2 * Panels + v) * kLanes, whole[row][v]);
}

}  // namespace aerie
#endif
