// Parts of attention, for a head of Parts * 16 numbers: scores of keys, weights of scores, sums of weighed values.
#pragma once

#include <cmath>

#include "vectors.h"

namespace aerie {

// `dim` numbers times those of one key, to be summed.
template <class Number, int Parts>
inline Floats products(const Floats* asked, const Number* key) {
  Floats products{};  // from zero, so that every compiled copy fuses the same products with the same sums
#pragma GCC unroll 16
  for (int part = 0; part < Parts; ++part) products += asked[part] * floats(key + part * kLanes);
  return products;
}

// Scores of the keys [count], at most as many as there are lanes, that lie `offset` after slot(i).
template <class Number, int Parts, class Slot>
inline void score(float* found, const Floats* asked, long count, long offset, Slot slot) {
  if (count < kLanes) {
    for (long i = 0; i < count; ++i) found[i] = sum(products<Number, Parts>(asked, slot(i) + offset));
    return;
  }
  Floats each[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) each[i] = products<Number, Parts>(asked, slot(i) + offset);
  store(found, sums(each));
}

// Adds the values [count] that lie `offset` after slot(i), weighed, for Heads heads that share them.
template <class Number, int Parts, int Heads, class Slot>
inline void mix(float* const* mixed, const float* const* weights, long count, long offset, Slot slot) {
  Floats kept[Heads][Parts];
#pragma GCC unroll 2
  for (int head = 0; head < Heads; ++head)
#pragma GCC unroll 16
    for (int part = 0; part < Parts; ++part) kept[head][part] = load(mixed[head] + part * kLanes);
  for (long i = 0; i < count; ++i) {
    const Number* value = slot(i) + offset;
#pragma GCC unroll 2
    for (int head = 0; head < Heads; ++head)
#pragma GCC unroll 16
      for (int part = 0; part < Parts; ++part) kept[head][part] += floats(value + part * kLanes) * weights[head][i];
  }
#pragma GCC unroll 2
  for (int head = 0; head < Heads; ++head)
#pragma GCC unroll 16
    for (int part = 0; part < Parts; ++part) store(mixed[head] + part * kLanes, kept[head][part]);
}

template <int Parts>
inline void scaled(Floats* asked, const float* query) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(Parts * kLanes));
#pragma GCC unroll 16
  for (int part = 0; part < Parts; ++part) asked[part] = load(query + part * kLanes) * scale;
}

// Weights of what a query's head sees, of its scores [count], which end in -infinity.
inline float weigh(float* scores, long count) {
  Floats most = load(scores), total{};
  for (long i = kLanes; i < count; i += kLanes) {
    const Floats found = load(scores + i);
    most = found > most ? found : most;
  }
  float top = most[0];
  for (long lane = 1; lane < kLanes; ++lane) top = most[lane] > top ? most[lane] : top;
  for (long i = 0; i < count; i += kLanes) {
    const Floats weights = exp(load(scores + i) - top);
    store(scores + i, weights);
    total += weights;
  }
  return 1.0f / sum(total);
}

}  // namespace aerie
