// Tiles of AMX: registers of sixteen rows of 64 bytes, and the product of two of them with inputs in bf16 and sums in
// fp32. By their names and not by intrinsics: the library is compiled for CPUs that lack them, too, and
// native/products.py uses them only on a CPU that has them.
#pragma once

#include <cstdint>

#include "vectors.h"

#if defined(__AVX512F__) && defined(__linux__) && (__has_include(<amxbf16intrin.h>) || __has_include(<amxintrin.h>))
#define AERIE_AMX  // else the assembler may not know them
#endif

namespace aerie {

#ifdef AERIE_AMX
constexpr long kTileRows = 16;
constexpr long kTileInputs = 32;  // of each row

// The tiles of this thread, as long as this exists: of sums (0 to 3) and of x (6, 7) with `rows` rows, and two of weights
// (4, 5). Their shapes before are those after: oneDNN, which torch uses, sets its own once and relies on them.
class AmxTiles {
 public:
  explicit AmxTiles(long rows) {
    alignas(64) uint8_t shapes[kShapes] = {1};  // palette, then from 16 on the bytes of a row and from 48 on the rows
    for (int tile = 0; tile < 8; ++tile) {
      shapes[16 + 2 * tile] = 64;
      shapes[48 + tile] = static_cast<uint8_t>(tile / 2 == 2 ? kTileRows : rows);
    }
    asm volatile("sttilecfg %0" : "=m"(before_));
    asm volatile("ldtilecfg %0" : : "m"(shapes));
  }
  ~AmxTiles() { asm volatile("ldtilecfg %0" : : "m"(before_)); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

 private:
  static constexpr long kShapes = 64;
  alignas(64) uint8_t before_[kShapes];
};

template <int Tile>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
}

// Rows of 64 bytes, `pitch` bytes apart.
template <int Tile>
inline void load_tile(const void* from, long pitch) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(pitch), "i"(Tile) : "memory");
}

template <int Tile>
inline void store_tile(void* to, long pitch) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(pitch), "i"(Tile) : "memory");
}

// A vector of numbers as AMX takes them: rounded to bf16, to nearest and ties to even, denormal ones to zeros.
inline void halve_for_amx(uint16_t* to, const float* from) {
  __m256i halves;
  asm("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(load(from)));
  store(to, halves);
}

// To sums [row, output] of fp32, x [row, inputs] times weights [inputs / 2, output, 2].
template <int Sums, int X, int Weights>
inline void add_tile_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(X), "i"(Weights));
}
#endif

}  // namespace aerie
