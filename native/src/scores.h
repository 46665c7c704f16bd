// Parts of attention, for a head of as many vectors as Parts: scores of keys, softmax weights, weighted sums of values.
#pragma once

#include <algorithm>
#include <cmath>

#include "functions.h"

namespace aerie {

// A query's head: what it asks, its scores by position, and the values that they mix.
struct Line {
  const float* asked;  // scaled
  float *scores, *mixed;
  long seen;  // positions that it sees, from the first on
};

// As many lines at a time as have their sums in registers, beside what they share.
constexpr int kLines = 6;

// Fewer keys are summed up one by one.
constexpr long kFew = kLanes / 4;

// Keys at a time whose products with `lines` lines have registers, beside a key and what the lines ask.
constexpr int keys_at_once(int lines) {
  int keys = 1;
  while (kRegisters == 16 && keys < kLanes && (2 * keys + 1) * lines + 1 < kRegisters) keys *= 2;
  return keys;
}

// `dim` numbers of each of Lines queries times those of each of Keys keys, as vectors still to be summed.
template <class Number, int Parts, int Lines, int Keys>
inline void multiply(Floats (*products)[Keys], const Line* lines, const Number* const* keys) {
#pragma GCC unroll 8
  for (int line = 0; line < Lines; ++line)
#pragma GCC unroll 8
    for (int key = 0; key < Keys; ++key) products[line][key] = Floats{};  // so that all products are fused with sums alike
#pragma GCC unroll 16
  for (int part = 0; part < Parts; ++part)
#pragma GCC unroll 8
    for (int key = 0; key < Keys; ++key) {
      const Floats read = floats(keys[key] + part * kLanes);
#pragma GCC unroll 8
      for (int line = 0; line < Lines; ++line) products[line][key] += load(lines[line].asked + part * kLanes) * read;
    }
}

// Scores from `first` on of the keys [count], at most as many as there are lanes, at `offset` after slot(i), for Lines
// lines that share them. What it writes beyond `count` says nothing.
template <class Number, int Parts, int Lines, class Slot>
inline void score(const Line* lines, long first, long count, long offset, Slot slot) {
  if (count < kFew) {
    Floats products[Lines][1];
    for (long i = 0; i < count; ++i) {
      const Number* key = slot(i) + offset;
      multiply<Number, Parts, Lines, 1>(products, lines, &key);
      for (int line = 0; line < Lines; ++line) lines[line].scores[first + i] = sum(products[line][0]);
    }
    return;
  }
  constexpr int at_once = keys_at_once(Lines), times = kLanes / at_once;
  Floats folds[Lines][times];
  for (int time = 0; time < times; ++time) {  // keys whose products are folded first
    const Number* keys[at_once];
    for (int i = 0; i < at_once; ++i) keys[i] = slot(std::min<long>(time + i * times, count - 1)) + offset;
    Floats products[Lines][at_once];
    multiply<Number, Parts, Lines, at_once>(products, lines, keys);
#pragma GCC unroll 8
    for (int line = 0; line < Lines; ++line) folds[line][time] = fold<kLanes / 2, at_once>(products[line]);
  }
#pragma GCC unroll 8
  for (int line = 0; line < Lines; ++line) store(lines[line].scores + first, fold<times / 2, times>(folds[line]));
}

// Adds Count vectors of each of the values [count], from vector First on.
template <class Number, int First, int Count, int Lines, class Slot>
inline void mix_some(const Line* lines, long first, long count, long offset, Slot slot) {
  Floats kept[Lines][Count];
#pragma GCC unroll 8
  for (int line = 0; line < Lines; ++line)
#pragma GCC unroll 16
    for (int part = 0; part < Count; ++part) kept[line][part] = load(lines[line].mixed + (First + part) * kLanes);
  long i = 0;
  do {  // there is one at least: sums that could stay as they are would be kept twice
    const Number* value = slot(i) + offset + First * kLanes;
    Floats read[Count];
#pragma GCC unroll 16
    for (int part = 0; part < Count; ++part) read[part] = floats(value + part * kLanes);
#pragma GCC unroll 8
    for (int line = 0; line < Lines; ++line) {
      const float weight = lines[line].scores[first + i];
#pragma GCC unroll 16
      for (int part = 0; part < Count; ++part) kept[line][part] += read[part] * weight;
    }
  } while (++i < count);
#pragma GCC unroll 8
  for (int line = 0; line < Lines; ++line)
#pragma GCC unroll 16
    for (int part = 0; part < Count; ++part) store(lines[line].mixed + (First + part) * kLanes, kept[line][part]);
}

// Vectors of a value at a time, of `parts` that are left: their sums for each of `lines` lines and the vectors themselves
// have registers, beside a weight and what else the loop needs. In equal shares.
constexpr int parts_at_once(int lines, int parts) {
  const int most = static_cast<int>(kRegisters - 2) / (lines + 1), times = (parts + most - 1) / most;
  return (parts + times - 1) / times;
}

// Adds the values [count] at `offset` after slot(i), weighted by the scores from `first` on, for Lines lines that share
// them, with as many of their vectors at a time as fit in registers.
template <class Number, int Parts, int Lines, int First = 0, class Slot>
inline void mix(const Line* lines, long first, long count, long offset, Slot slot) {
  constexpr int some = parts_at_once(Lines, Parts - First);
  mix_some<Number, First, some, Lines>(lines, first, count, offset, slot);
  if constexpr (First + some < Parts) mix<Number, Parts, Lines, First + some>(lines, first, count, offset, slot);
}

inline void scale(float* asked, const float* query, long dim) {
  const float by = 1.0f / std::sqrt(static_cast<float>(dim));
  for (long i = 0; i < dim; i += kLanes) store(asked + i, load(query + i) * by);
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
