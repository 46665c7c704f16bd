// Functions on vectors of floats.
#pragma once

#include <cmath>

#include "vectors.h"

namespace aerie {

// e^x for x <= 88, to two units in the last place; 0 below -87. Cody-Waite reduction and the polynomial of degree five
// of Cephes' expf: x = n ln 2 + r, e^x = 2^n e^r.
inline Floats exp(Floats x) {
  const Ints alive = x > -87.0f;
  x = alive ? x : Floats{};
  const float round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Floats shifted = x * 1.44269504f + round;
  const Floats n = shifted - round;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Ints power = (same_bits<Ints>(shifted) - 0x4B400000 + 127) << 23;
  return alive ? p * same_bits<Floats>(power) : Floats{};
}

// The sum of e^((x - most) / heat), `most` being the largest of values [count].
inline float exp_sum(const float* values, long count, float most, float heat) {
  Floats sums{};
  long i = 0;
  for (; i + kLanes <= count; i += kLanes) sums += exp((load(values + i) - most) / heat);
  float total = sum(sums);
  for (; i < count; ++i) total += std::exp((values[i] - most) / heat);
  return total;
}

// ln x for x > 0 that is not subnormal, to two units in the last place: x = 2^n m with m in [sqrt(1/2), sqrt(2)), and
// the polynomial of Cephes' logf for ln m.
inline Floats log(Floats x) {
  const Ints bits = same_bits<Ints>(x);
  const Ints n = (bits - 0x3F3504F3) >> 23;
  const Floats whole = __builtin_convertvector(n, Floats);
  const Floats r = same_bits<Floats>(bits - (n << 23)) - 1.0f;
  Floats p = r * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * r + 1.1676998740e-1f;
  p = p * r - 1.2420140846e-1f;
  p = p * r + 1.4249322787e-1f;
  p = p * r - 1.6668057665e-1f;
  p = p * r + 2.0000714765e-1f;
  p = p * r - 2.4999993993e-1f;
  p = p * r + 3.3333331174e-1f;
  const Floats square = r * r;
  const Floats small = p * r * square - whole * 2.12194440e-4f - 0.5f * square;
  return r + small + whole * 0.693359375f;
}

}  // namespace aerie
