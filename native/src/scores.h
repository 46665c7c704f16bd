// Parts of attention, for a head of as many vectors as Parts: scores of keys, softmax weights, weighted sums of values.
#pragma once

#include <algorithm>
#include <cmath>

#include "functions.h"

namespace aerie {

// `dim` numbers of each of Heads queries times those of one key, as vectors still to be summed.
template <class Number, int Parts, int Heads>
inline void multiply(Floats* products, const Floats (*asked)[Parts], const Number* key) {
#pragma GCC unroll 2
  for (int head = 0; head < Heads; ++head) products[head] = Floats{};  // so that all products are fused with sums alike
#pragma GCC unroll 16
  for (int part = 0; part < Parts; ++part) {
    const Floats read = floats(key + part * kLanes);
#pragma GCC unroll 2
    for (int head = 0; head < Heads; ++head) products[head] += asked[head][part] * read;
  }
}

// Scores of the keys [count], at most as many as there are lanes, at `offset` after slot(i), for Heads heads that share
// them.
template <class Number, int Parts, int Heads, class Slot>
inline void score(float* const* found, const Floats (*asked)[Parts], long count, long offset, Slot slot) {
  Floats each[Heads][kLanes], products[Heads];
  if (count < kLanes) {
    for (long i = 0; i < count; ++i) {
      multiply<Number, Parts, Heads>(products, asked, slot(i) + offset);
      for (int head = 0; head < Heads; ++head) found[head][i] = sum(products[head]);
    }
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    multiply<Number, Parts, Heads>(products, asked, slot(i) + offset);
#pragma GCC unroll 2
    for (int head = 0; head < Heads; ++head) each[head][i] = products[head];
  }
#pragma GCC unroll 2
  for (int head = 0; head < Heads; ++head) store(found[head], sums(each[head]));
}

// Adds Count vectors of each of the values [count], from vector First on.
template <class Number, int First, int Count, int Heads, class Slot>
inline void mix_some(float* const* mixed, const float* const* weights, long count, long offset, Slot slot) {
  Floats kept[Heads][Count];
#pragma GCC unroll 2
  for (int head = 0; head < Heads; ++head)
#pragma GCC unroll 16
    for (int part = 0; part < Count; ++part) kept[head][part] = load(mixed[head] + (First + part) * kLanes);
  for (long i = 0; i < count; ++i) {
    const Number* value = slot(i) + offset + First * kLanes;
#pragma GCC unroll 16
    for (int part = 0; part < Count; ++part) {
      const Floats read = floats(value + part * kLanes);
#pragma GCC unroll 2
      for (int head = 0; head < Heads; ++head) kept[head][part] += read * weights[head][i];
    }
  }
#pragma GCC unroll 2
  for (int head = 0; head < Heads; ++head)
#pragma GCC unroll 16
    for (int part = 0; part < Count; ++part) store(mixed[head] + (First + part) * kLanes, kept[head][part]);
}

// Adds the weighted values [count] at `offset` after slot(i), for Heads heads that share them, with as many of their
// vectors at a time as fit in registers.
template <class Number, int Parts, int Heads, int First = 0, class Slot>
inline void mix(float* const* mixed, const float* const* weights, long count, long offset, Slot slot) {
  constexpr int some = std::min<int>(kRegisters / 2 / Heads, Parts - First);
  mix_some<Number, First, some, Heads>(mixed, weights, count, offset, slot);
  if constexpr (First + some < Parts) mix<Number, Parts, Heads, First + some>(mixed, weights, count, offset, slot);
}

template <int Parts>
inline void scaled(Floats* asked, const float* query) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(Parts * kLanes));
#pragma GCC unroll 16
  for (int part = 0; part < Parts; ++part) asked[part] = load(query + part * kLanes) * scale;
}

// Softmax weights of what a query's head sees, from its scores [count], which end in -infinity.
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
