// Sixteen floats that are computed with at once, in registers of whatever width the machine has. Compilers lower the
// generic vectors of GCC and Clang to AVX-512, to two of AVX2 or to four of NEON.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace aerie {

constexpr long kLanes = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

template <class Vector, class Number>
inline Vector load(const Number* from) {
  Vector lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

inline Floats load(const float* from) { return load<Floats>(from); }

template <class Vector, class Number>
inline void store(Number* to, Vector lanes) {
  std::memcpy(to, &lanes, sizeof lanes);
}

template <class To, class From>
inline To same_bits(From lanes) {
  static_assert(sizeof(To) == sizeof(From));
  To other;
  std::memcpy(&other, &lanes, sizeof other);
  return other;
}

typedef int8_t Bytes __attribute__((vector_size(16)));
typedef int16_t Shorts __attribute__((vector_size(32)));

// Sixteen bf16 numbers: the upper halves of as many floats.
inline Floats widened(const uint16_t* from) {
#ifdef __AVX512F__  // which GCC would do in halves
  return same_bits<Floats>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load<__m256i>(from)), 16));
#else
  return same_bits<Floats>(__builtin_convertvector(load<Halves>(from), Words) << 16);
#endif
}

// Numbers of a type that activations and pools have, as floats and back; bf16 is rounded to the nearest, ties to even.
inline Floats floats(const float* from) { return load(from); }

inline Floats floats(const uint16_t* from) { return widened(from); }

inline void put(float* to, Floats lanes) { store(to, lanes); }

inline void put(uint16_t* to, Floats lanes) {
  const Words bits = same_bits<Words>(lanes);
  const Words rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  store(to, __builtin_convertvector(lanes == lanes ? rounded : Words{} + 0x7FC0u, Halves));
}

// `count` numbers, whole vectors of them, of floats or of bf16, as floats; and back.
inline void unpack(float* to, const void* from, long count, bool halves) {
  if (!halves) std::memcpy(to, from, count * sizeof(float));
  for (long i = 0; halves && i < count; i += kLanes) store(to + i, widened(static_cast<const uint16_t*>(from) + i));
}

inline void pack(void* to, const float* from, long count, bool halves) {
  if (!halves) std::memcpy(to, from, count * sizeof(float));
  for (long i = 0; halves && i < count; i += kLanes) put(static_cast<uint16_t*>(to) + i, load(from + i));
}

// What a model in bf16 would have handed on: `count` floats rounded to it, where it is in halves.
inline void settle(float* numbers, long count, bool halves) {
  if (!halves) return;
  uint16_t rounded[kLanes];
  long i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    put(rounded, load(numbers + i));
    store(numbers + i, widened(rounded));
  }
  if (i == count) return;
  float rest[kLanes] = {};
  std::memcpy(rest, numbers + i, (count - i) * sizeof(float));
  settle(rest, kLanes, true);
  std::memcpy(numbers + i, rest, (count - i) * sizeof(float));
}

// Sixteen 8-bit integers.
inline Floats widened(const int8_t* from) {
#ifdef __AVX512F__
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(from)));
#else
  const Shorts wider = __builtin_convertvector(load<Bytes>(from), Shorts);  // in one step GCC goes lane by lane
  return __builtin_convertvector(__builtin_convertvector(wider, Ints), Floats);
#endif
}

// In halves, always in the same order.
inline float sum(Floats lanes) {
  typedef float Eight __attribute__((vector_size(32)));
  typedef float Four __attribute__((vector_size(16)));
  Eight eights[2];
  std::memcpy(eights, &lanes, sizeof lanes);
  const Eight eight = eights[0] + eights[1];
  Four fours[2];
  std::memcpy(fours, &eight, sizeof eight);
  const Four four = fours[0] + fours[1];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

#ifdef __clang__
#define AERIE_SHUFFLED(one, other, ...) __builtin_shufflevector(one, other, __VA_ARGS__)
#else
#define AERIE_SHUFFLED(one, other, ...) __builtin_shuffle(one, other, Ints{__VA_ARGS__})
#endif

// `sum` of sixteen vectors, each in its lane, in the same order and with a fifth of the operations.
inline Floats sums(const Floats* of) {
  Floats eights[8], fours[4], twos[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const Floats one = of[i], other = of[i + 8];
    eights[i] = AERIE_SHUFFLED(one, other, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                AERIE_SHUFFLED(one, other, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Floats one = eights[i], other = eights[i + 4];
    fours[i] = AERIE_SHUFFLED(one, other, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
               AERIE_SHUFFLED(one, other, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const Floats one = fours[i], other = fours[i + 2];
    twos[i] = AERIE_SHUFFLED(one, other, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
              AERIE_SHUFFLED(one, other, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
  return AERIE_SHUFFLED(twos[0], twos[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
         AERIE_SHUFFLED(twos[0], twos[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
}

// Whether any lane of a comparison holds.
inline bool any(Ints lanes) {
  int64_t parts[8], all = 0;
  std::memcpy(parts, &lanes, sizeof lanes);
  for (const int64_t part : parts) all |= part;
  return all != 0;
}

// e^x for x <= 88, to two units in the last place; 0 under -87. Cody-Waite reduction and the polynomial of degree five
// that Cephes' expf has: x = n ln 2 + r, e^x = 2^n e^r.
inline Floats exp(Floats x) {
  const Ints alive = x > -87.0f;
  x = alive ? x : Floats{};
  const float round = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer in its low bits
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
// the polynomial that Cephes' logf has for ln m.
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
