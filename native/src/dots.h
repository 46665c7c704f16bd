// Dot products of bf16 (AVX512_BF16): each lane adds the products of two inputs to its sum, in fp32. Compiled where vectors
// have sixteen lanes; native/products.py uses them only on a CPU that has the instruction.
#pragma once

#include "vectors.h"

#if defined(__AVX512F__) && __has_include(<avx512bf16intrin.h>)  // else the assembler may not know it
#define AERIE_DOTS
#endif

namespace aerie {

// bf16 numbers of two inputs, side by side.
struct Pair {
  uint16_t numbers[2];
};

inline Words spread(Pair factor) { return Words{} + same_bits<uint32_t>(factor); }

#ifdef AERIE_DOTS
// By its name and not by an intrinsic: the functions around it are compiled for CPUs that lack the instruction, too.
inline void add_product(Floats& sum, Words weights, Words factors) {
  Floats lanes = sum;  // a place in memory, as of an array, would stay there
  asm("vdpbf16ps %2, %1, %0" : "+v"(lanes) : "v"(weights), "v"(factors));
  sum = lanes;
}
#endif

}  // namespace aerie
