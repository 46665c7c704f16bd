// The sums of AMX's tiles by vectors, for one or two rows and integers, which tiles take too long to widen for so few:
// equal to the last bit. AMX adds up the first inputs of a tile's pairs and the second ones, each in order, then both,
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

// Sums [Rows, Panels * kPanel] of panels of integers that lie `apart`, of x [Rows, tiles * kTileInputs], rounded.
template <int Rows, int Panels>
void sum_rows(float* sums, const float* x, const int8_t* panels, long apart, long tiles) {
  constexpr long ahead = 8192 / Panels, pair = 2 * kPanel;
  const long inputs = tiles * kTileInputs;
  Floats whole[Rows][2 * Panels] = {};
  for (long tile = 0; tile < tiles; ++tile) {
    Floats first[Rows][2 * Panels] = {}, second[Rows][2 * Panels] = {};
    // Near the panels' end, of those that follow them.
    const long next = ahead + (tile * kTileInputs / 2 * pair + ahead < apart ? 0 : (Panels - 1) * apart);
#pragma GCC unroll 2
    for (long i = tile * kTileInputs; i < (tile + 1) * kTileInputs; i += 2) {
#pragma GCC unroll 4
      for (int panel = 0; panel < Panels; ++panel) {
        const int8_t* const from = panels + panel * apart + i / 2 * pair;
        __builtin_prefetch(from + next);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const Floats one = widened(from + half * 2 * kLanes), other = widened(from + half * 2 * kLanes + kLanes);
#pragma GCC unroll 2
          for (int row = 0; row < Rows; ++row) {
            first[row][2 * panel + half] += one * x[row * inputs + i];
            second[row][2 * panel + half] += other * x[row * inputs + i + 1];
          }
        }
      }
    }
    for (int row = 0; row < Rows; ++row)
      for (int v = 0; v < 2 * Panels; ++v) whole[row][v] += first[row][v] + second[row][v];
  }
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < 2 * Panels; ++v) store(sums + (row * 2 * Panels + v) * kLanes, whole[row][v]);
}

}  // namespace aerie
#endif
