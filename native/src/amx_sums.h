// The sums of one or two tiles of rows by one or two panels of weights, in AMX's registers.
#pragma once

#include <type_traits>
#include <vector>

#include "amx.h"
#include "tile.h"

#ifdef AERIE_AMX
namespace amx {
using namespace aerie;

constexpr long kLine = 64;  // bytes of a cache line
constexpr long kTileOfWeights = kTileInputs * kPanel, kTileOfX = kTileRows * kTileInputs;
constexpr long kBytesAhead = 2048;  // of all panels at once, to prefetch
constexpr long kPlaces = 2;         // tiles of rows, or panels, whose sums are kept at once

inline uint16_t* on_a_line(uint16_t* numbers) {
  return reinterpret_cast<uint16_t*>((reinterpret_cast<uintptr_t>(numbers) + kLine - 1) / kLine * kLine);
}

// Integers as numbers of bf16, in pairs. Of each 32, the first half are the first inputs of the pairs.
inline void widen(uint16_t* to, const int8_t* from, long count) {
  for (long i = 0; i < count; i += 2 * kLanes) store(to + i, in_pairs(from + i, from + i + kLanes));
}

// Prefetches the tile of weights that lies `ahead` bytes behind this one; where only that is `left` of the panel, it is
// further by the `others` that are computed with it.
template <class Weight>
inline void prefetch(const Weight* from, long ahead, long left, long others) {
  const char* const next = reinterpret_cast<const char*>(from) + ahead + (ahead < left ? 0 : others);
#pragma GCC unroll 32
  for (long line = 0; line < kTileOfWeights * static_cast<long>(sizeof(Weight)); line += kLine)
    __builtin_prefetch(next + line);
}

// Sums of tiles of rows from `x` on and panels from `weights` on, in tiles: 0 and 1 for the halves of the first panel
// and rows, 2 and 3 for the second panel or the second rows. `fresh` says that memory has to send the weights.
template <int Parts, int Rows, int Panels, class Weight>
void sum_up(const uint16_t* x, const Weight* weights, long tiles, bool fresh) {
  static_assert(Rows * Panels <= kPlaces);
  constexpr long tile = kTileOfX, bytes = kTileOfWeights * sizeof(Weight);
  const long apart = tiles * kTileOfWeights;
  alignas(kLine) uint16_t wide[2 * kPlaces][sizeof(Weight) == 1 ? kTileOfWeights : 1];  // two steps at a time
  zero_tile<0>(), zero_tile<1>();
  if (Rows * Panels > 1) zero_tile<2>(), zero_tile<3>();
  for (long step = 0; step < tiles; ++step) {
    const uint16_t* const own = x + step * Parts * tile;
    for (int panel = 0; panel < Panels; ++panel) {
      const Weight* const stored = weights + panel * apart + step * kTileOfWeights;
      if (fresh) prefetch(stored, kBytesAhead / Panels, (tiles - step) * bytes, (Panels - 1) * tiles * bytes);
      const uint16_t* from;
      if constexpr (sizeof(Weight) == 1) {
        widen(wide[step % 2 * kPlaces + panel], stored, kTileOfWeights);
        from = wide[step % 2 * kPlaces + panel];
      } else {
        from = stored;
      }
      load_tile<4>(from, 2 * kLine);
      load_tile<5>(from + kLine / 2, 2 * kLine);
#pragma GCC unroll 3
      for (int part = 0; part < Parts; ++part) {
        load_tile<6>(own + part * tile, kLine);
        if (panel == 0) add_tile_product<0, 6, 4>(), add_tile_product<1, 6, 5>();
        if (panel == 1) add_tile_product<2, 6, 4>(), add_tile_product<3, 6, 5>();
        if (Rows == 2) {
          load_tile<7>(own + (tiles * Parts + part) * tile, kLine);
          add_tile_product<2, 7, 4>(), add_tile_product<3, 7, 5>();
        }
      }
    }
  }
}

// A panel of weights in bf16: itself, or integers widened, which are then multiplied by many rows.
inline const uint16_t* in_bf16(const uint16_t* panel, long) { return panel; }

inline const uint16_t* in_bf16(const int8_t* panel, long tiles) {
  static thread_local std::vector<uint16_t> kept;  // with room to begin on a cache line
  kept.resize(tiles * kTileOfWeights + kLine / 2);
  uint16_t* const wide = on_a_line(kept.data());
  for (long tile = 0; tile < tiles; ++tile) {
    prefetch(panel + tile * kTileOfWeights, kBytesAhead, 2 * kBytesAhead, 0);
    widen(wide + tile * kTileOfWeights, panel + tile * kTileOfWeights, kTileOfWeights);
  }
  return wide;
}

}  // namespace amx
#endif
