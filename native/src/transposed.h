// Attention for many lines: what they share is prepared once. Keys are transposed, so that a vector holds one number of
// each of some keys: a line multiplies it by a number of its own, and no sum goes across lanes. Values of bf16 are widened.
// A score adds up the same products as in scores.h, in the same order.
#pragma once

#include "scores.h"

namespace aerie {

// Only with AVX2: what it gains with other vectors was not measured.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr bool kPrepares = true;
#else
constexpr bool kPrepares = false;
#endif

// Keys or values that are prepared at a time, and the vectors that a number of each takes.
constexpr long kKeys = 2 * kLanes;
constexpr int kKeyVectors = kKeys / kLanes;

// How often sums are halved until one is left.
constexpr int kHalvings = kLanes == 16 ? 4 : kLanes == 8 ? 3 : 2;

// The lanes in the order in which `sum` reaches them: each time that it folds, the lane from the other half comes next.
constexpr long lane_of(long step) {
  long lane = 0;
  for (long from = 1, to = kLanes / 2; to > 0; from *= 2, to /= 2) lane += (step / from) % 2 * to;
  return lane;
}

#ifdef __AVX2__
// Four words, from `at` on, of each of eight keys: vector i has word i of all keys. A half of each vector is loaded from
// another key, since shuffles within halves are the fast ones.
template <class Number>
inline void transpose_words(__m256i* words, const Number* const* keys, long at) {
  __m256 pairs[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m128 lower = load<__m128>(keys[i] + at), upper = load<__m128>(keys[i + 4] + at);
    pairs[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(lower), upper, 1);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const auto interleaved = [&](int first) {
      return i ? _mm256_unpackhi_ps(pairs[first], pairs[first + 1]) : _mm256_unpacklo_ps(pairs[first], pairs[first + 1]);
    };
    const __m256d one = _mm256_castps_pd(interleaved(0)), other = _mm256_castps_pd(interleaved(2));
    words[2 * i] = _mm256_castpd_si256(_mm256_unpacklo_pd(one, other));
    words[2 * i + 1] = _mm256_castpd_si256(_mm256_unpackhi_pd(one, other));
  }
}

inline void transpose_words(float* to, const float* const* keys, long at) {
  __m256i words[4];
  transpose_words(words, keys, at);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) store(to + (at + i) * kKeys, words[i]);
}

// Words of bf16 are two numbers, of which the lower one comes first.
inline void transpose_words(float* to, const uint16_t* const* keys, long at) {
  __m256i words[4];
  transpose_words(words, keys, at);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    store(to + (at + 2 * i) * kKeys, _mm256_slli_epi32(words[i], 16));
    store(to + (at + 2 * i + 1) * kKeys, _mm256_blend_epi16(_mm256_setzero_si256(), words[i], 0xAA));
  }
}
#endif

// The keys [count] at `offset` after slot(i), as floats [dim, kKeys]. What it writes beyond `count` says nothing.
template <class Number, int Parts, class Slot>
inline void transpose(float* to, long count, long offset, Slot slot) {
  for (long first = 0; first < kKeys; first += kLanes) {
    const Number* keys[kLanes];
    for (long i = 0; i < kLanes; ++i) keys[i] = slot(std::min(first + i, count - 1)) + offset;
    for (long at = 0; at < Parts * kLanes; at += 16 / sizeof(Number)) transpose_words(to + first, keys, at);
  }
}

// The values [count] at `offset` after slot(i), as floats [count, dim].
template <class Number, int Parts, class Slot>
inline void widen(float* to, long count, long offset, Slot slot) {
  for (long i = 0; i < count; ++i, to += Parts * kLanes) {
    const Number* value = slot(i) + offset;
#pragma GCC unroll 16
    for (int part = 0; part < Parts; ++part) store(to + part * kLanes, floats(value + part * kLanes));
  }
}

// Scores from `first` on of transposed keys [dim, kKeys] for Lines lines that share them.
template <int Parts, int Lines>
inline void score_transposed(const Line* lines, long first, const float* keys) {
  Floats halved[kHalvings + 1][Lines][kKeyVectors];  // sums that wait for their other half, by how often they were halved
  for (long step = 0; step < kLanes; ++step) {
    const long lane = lane_of(step);
    Floats sums[Lines][kKeyVectors] = {};
    for (long at = lane; at < Parts * kLanes; at += kLanes) {
      Floats read[kKeyVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kKeyVectors; ++v) read[v] = load(keys + at * kKeys + v * kLanes);
#pragma GCC unroll 8
      for (int line = 0; line < Lines; ++line) {
        const float asked = lines[line].asked[at];
#pragma GCC unroll 2
        for (int v = 0; v < kKeyVectors; ++v) sums[line][v] += read[v] * asked;
      }
    }
    int halvings = 0;
    for (; step >> halvings & 1; ++halvings)
#pragma GCC unroll 8
      for (int line = 0; line < Lines; ++line)
#pragma GCC unroll 2
        for (int v = 0; v < kKeyVectors; ++v) sums[line][v] += halved[halvings][line][v];
#pragma GCC unroll 8
    for (int line = 0; line < Lines; ++line)
#pragma GCC unroll 2
      for (int v = 0; v < kKeyVectors; ++v) halved[halvings][line][v] = sums[line][v];
  }
#pragma GCC unroll 8
  for (int line = 0; line < Lines; ++line)
#pragma GCC unroll 2
    for (int v = 0; v < kKeyVectors; ++v) store(lines[line].scores + first + v * kLanes, halved[kHalvings][line][v]);
}

}  // namespace aerie
