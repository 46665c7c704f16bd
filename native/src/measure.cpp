// What native/choice measures: products one after the other, as in a step, and the limits of this CPU on one thread.
#include "amx.h"
#include "dots.h"
#include "kernels.h"

using namespace aerie;

// x [tokens, inputs], with as many inputs as each matrix has -> out, overwritten by each product.
extern "C" void multiplied_one_by_one(float* out, const float* x, const Matrix* matrices, long count, long tokens) {
  for (const Matrix* matrix = matrices; matrix < matrices + count; ++matrix)
    multiplied(out, x, matrix, tokens, false);
}

// `rounds` multiply-adds of each of as many independent vectors as a product has sums, all in registers; numbers
// [kLanes] are overwritten. Returns the number of multiply-adds of floats.
extern "C" double multiply_adds(float* numbers, long rounds) {
  constexpr long count = kRegisters - 4;
  Floats sums[count];
  const Floats factor = load(numbers);
  for (long i = 0; i < count; ++i) sums[i] = factor * static_cast<float>(i);
  for (long round = 0; round < rounds; ++round)
#pragma GCC unroll 32
    for (long i = 0; i < count; ++i) sums[i] += factor * sums[i];
  Floats total{};
  for (long i = 0; i < count; ++i) total += sums[i];
  store(numbers, total);
  return static_cast<double>(rounds) * count * kLanes;
}

// The same of dot products: two multiply-adds for each float of a sum. Returns 0 if this library has none.
extern "C" double dot_products([[maybe_unused]] float* numbers, [[maybe_unused]] long rounds) {
#ifdef AERIE_DOTS
  constexpr long count = kRegisters - 4;
  Floats sums[count] = {};
  const Words pairs = same_bits<Words>(load(numbers));
  for (long round = 0; round < rounds; ++round)
#pragma GCC unroll 32
    for (long i = 0; i < count; ++i) add_product(sums[i], pairs, pairs);
  Floats total{};
  for (long i = 0; i < count; ++i) total += sums[i];
  store(numbers, total);
  return 2.0 * static_cast<double>(rounds) * count * kLanes;
#else
  return 0;
#endif
}

// The same of AMX, on tiles of zeros. Returns 0 if this library has none; this process may use them.
extern "C" double amx_products([[maybe_unused]] long rounds) {
#ifdef AERIE_AMX
  const AmxTiles tiles(kTileRows);
  zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
  zero_tile<4>(), zero_tile<5>(), zero_tile<6>(), zero_tile<7>();
  for (long round = 0; round < rounds; ++round) {
    add_tile_product<0, 6, 4>(), add_tile_product<1, 6, 5>();
    add_tile_product<2, 7, 4>(), add_tile_product<3, 7, 5>();
  }
  return 4.0 * static_cast<double>(rounds) * kTileRows * kTileInputs * kLanes;
#else
  return 0;
#endif
}

// Reads `count` floats from front to back.
extern "C" float read_through(const float* numbers, long count) {
  constexpr long at_once = 8;
  Floats sums[at_once] = {};
  for (long i = 0; i + at_once * kLanes <= count; i += at_once * kLanes)
#pragma GCC unroll 8
    for (long part = 0; part < at_once; ++part) {
      __builtin_prefetch(numbers + i + part * kLanes + 1024);
      sums[part] += load(numbers + i + part * kLanes);
    }
  Floats total{};
  for (const Floats& part : sums) total += part;
  return sum(total);
}
