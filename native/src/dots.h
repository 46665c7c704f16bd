// Dot products of bf16 (AVX512_BF16): each lane adds the products of two inputs to its sum, in fp32. Compiled where vectors
// have sixteen lanes; native/products.py uses them only on a CPU that has the instruction.
#pragma once

#include "vectors.h"

#if defined(__AVX512BW__) && __has_include(<avx512bf16intrin.h>)  // else the assembler may not know it
#define AERIE_DOTS
#endif

namespace aerie {

// bf16 numbers of two inputs, side by side.
struct Pair {
  uint16_t numbers[2];
};

// Integers of two inputs as pairs of bf16, which has them all: a whole number of bf16 is the upper half of a float.
inline Words in_pairs(const int8_t* first, const int8_t* second) {
  return same_bits<Words>(widened(first)) >> 16 | (same_bits<Words>(widened(second)) & 0xFFFF0000u);
}

inline Words spread(Pair factor) { return Words{} + same_bits<uint32_t>(factor); }

#ifdef AERIE_DOTS
// 8-bit integers of two inputs. In a panel, those of the first come first, of as many outputs as there are lanes.
struct IntegerPair {
  int8_t numbers[2];
};

// `in_pairs` by one shuffle, which is faster on a Zen 4.
inline Words in_pairs(const IntegerPair* from) {
  const auto first = reinterpret_cast<const int8_t*>(from);
  const auto upper = same_bits<__m512i>(widened(first)), others = same_bits<__m512i>(widened(first + kLanes));
  constexpr __mmask64 lower_halves = 0x3333333333333333;
  const __m512i down = _mm512_set4_epi32(0x0F0E, 0x0B0A, 0x0706, 0x0302);  // bytes of 16 by their numbers
  return same_bits<Words>(_mm512_mask_shuffle_epi8(others, lower_halves, upper, down));
}

// By its name and not by an intrinsic: the functions around it are compiled for CPUs that lack the instruction, too.
inline void add_product(Floats& sum, Words weights, Words factors) {
  Floats lanes = sum;  // a place in memory, as of an array, would stay there
  asm("vdpbf16ps %2, %1, %0" : "+v"(lanes) : "v"(weights), "v"(factors));
  sum = lanes;
}
#endif

}  // namespace aerie
