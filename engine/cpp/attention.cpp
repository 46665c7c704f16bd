// Attention of few queries over paged keys and values: every query looks at its row's prefix and at the nodes that its
// ancestor word names. A row's prefix is read once for all its queries, but each of them is computed in an order of its
// own, that of positions, so its result does not depend on what else is in the batch.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels.h"
#include "vectors.h"

using namespace aerie;

namespace {

struct Rows {
  const int32_t *qo_indptr, *kv_indptr, *pages;
  const int64_t *prefixes, *words;
  long count, heads, kv_heads, dim, page_size;
};

// What the queries of a row look at, by slot, and how much.
template <class Number>
struct Sight {
  std::vector<const Number*> slots;  // of the prefix, then of the row's nodes
  std::vector<float> scores;         // [queries, heads, stride]: of what each sees, then -infinity
  std::vector<long> nodes;           // that one query sees
  std::vector<long> keys;            // where in a slot the key of each head lies
  long stride;
};

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

template <class Number>
inline void fetch(const Sight<Number>& sight, long first, long last, long offset, long size) {
  for (long i = first; i < std::min<long>(last, sight.slots.size()); ++i)
    for (long at = 0; at < size; at += 64 / sizeof(Number)) __builtin_prefetch(sight.slots[i] + offset + at);
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

// The queries of one row: out and query [queries, heads, dim], the latter of token stride `stride`.
template <class Number, int Parts>
void look(float* out, const float* query, long stride, long prefix, long queries, const int64_t* words, const Rows& rows,
          Sight<Number>& sight) {
  constexpr long dim = Parts * kLanes;
  const long heads = rows.heads, to_values = rows.kv_heads * dim;
  const auto scores = [&](long node, long head) { return &sight.scores[(node * heads + head) * sight.stride]; };
  const auto see = [&](long node) {
    sight.nodes.clear();
    const long own = static_cast<long>(sight.slots.size()) - prefix;
    if (words == nullptr) {
      for (long other = 0; other <= node && other < own; ++other) sight.nodes.push_back(other);
    } else {
      for (uint64_t word = static_cast<uint64_t>(words[node]); word; word &= word - 1)
        if (const long other = __builtin_ctzll(word); other < own) sight.nodes.push_back(other);
    }
  };
  const auto mixed = [&](long node, long head) { return out + (node * heads + head) * dim; };
  const auto mix_all = [&](long node, long first, long count, auto slot) {  // by twos, for sums that wait for each other
    for (long head = 0; head < heads;) {
      const long offset = to_values + sight.keys[head];
      if (head + 1 < heads && sight.keys[head + 1] == sight.keys[head]) {
        float* const outs[] = {mixed(node, head), mixed(node, head + 1)};
        const float* const weights[] = {scores(node, head) + first, scores(node, head + 1) + first};
        mix<Number, Parts, 2>(outs, weights, count, offset, slot);
        head += 2;
      } else {
        float* const outs[] = {mixed(node, head)};
        const float* const weights[] = {scores(node, head) + first};
        mix<Number, Parts, 1>(outs, weights, count, offset, slot);
        head += 1;
      }
    }
  };
  Floats asked[Parts];
  for (long first = 0; first < prefix; first += kLanes) {
    const long count = std::min(kLanes, prefix - first);
    const Number* const* slots = &sight.slots[first];
    fetch(sight, first + kLanes, first + 2 * kLanes, 0, to_values);
    for (long node = 0; node < queries; ++node) {
      for (long head = 0; head < heads; ++head) {
        scaled<Parts>(asked, query + node * stride + head * dim);
        score<Number, Parts>(scores(node, head) + first, asked, count, sight.keys[head], [&](long i) { return slots[i]; });
      }
    }
  }
  for (long node = 0; node < queries; ++node) {
    see(node);
    const long own = static_cast<long>(sight.nodes.size()), seen = prefix + own;
    const long padded = std::max((seen + kLanes - 1) / kLanes * kLanes, kLanes);
    for (long head = 0; head < heads; ++head) {
      float* found = scores(node, head);
      scaled<Parts>(asked, query + node * stride + head * dim);
      for (long first = 0; first < own; first += kLanes)
        score<Number, Parts>(found + prefix + first, asked, std::min(kLanes, own - first), sight.keys[head],
                             [&](long i) { return sight.slots[prefix + sight.nodes[first + i]]; });
      std::fill(found + seen, found + padded, -INFINITY);
      found[sight.stride - 1] = weigh(found, padded);  // kept for the end
      std::fill_n(mixed(node, head), dim, 0.0f);
    }
  }
  for (long first = 0; first < prefix; first += kLanes) {
    const Number* const* slots = &sight.slots[first];
    fetch(sight, first + kLanes, first + 2 * kLanes, to_values, to_values);
    for (long node = 0; node < queries; ++node)
      mix_all(node, first, std::min(kLanes, prefix - first), [&](long i) { return slots[i]; });
  }
  for (long node = 0; node < queries; ++node) {
    see(node);
    mix_all(node, prefix, static_cast<long>(sight.nodes.size()),
            [&](long i) { return sight.slots[prefix + sight.nodes[i]]; });
    for (long head = 0; head < heads; ++head) {
      const float share = scores(node, head)[sight.stride - 1];
      for (int part = 0; part < Parts; ++part)
        store(mixed(node, head) + part * kLanes, load(mixed(node, head) + part * kLanes) * share);
    }
  }
}

template <class Number>
using Look = void (*)(float*, const float*, long, long, long, const int64_t*, const Rows&, Sight<Number>&);

// Heads of up to 128 numbers, and of 256.
template <class Number>
Look<Number> of_parts(long parts) {
  constexpr Look<Number> all[] = {look<Number, 1>, look<Number, 2>, look<Number, 3>, look<Number, 4>,
                                  look<Number, 5>, look<Number, 6>, look<Number, 7>, look<Number, 8>};
  return parts == 16 ? look<Number, 16> : all[parts - 1];
}

template <class Number>
void attend(float* out, const float* query, long stride, const Number* pool, const Rows& rows) {
  const long slot_size = 2 * rows.kv_heads * rows.dim;
  const Look<Number> look = of_parts<Number>(rows.dim / kLanes);
  static thread_local Sight<Number> sight;
  sight.keys.resize(rows.heads);
  for (long head = 0; head < rows.heads; ++head) sight.keys[head] = head / (rows.heads / rows.kv_heads) * rows.dim;
  for (long row = 0; row < rows.count; ++row) {
    const int32_t* own = rows.pages + rows.kv_indptr[row];
    // What is planned covers every position, except of rows that are done: they may look where they have no page.
    const long covered = (rows.kv_indptr[row + 1] - rows.kv_indptr[row]) * rows.page_size;
    const long first = rows.qo_indptr[row], queries = rows.qo_indptr[row + 1] - first;
    const long prefix = std::min<long>(rows.prefixes[row], covered);
    const long reach = std::min(prefix + (rows.words ? std::max<long>(queries, 64) : queries), covered);
    sight.slots.clear();
    for (long page = 0; page * rows.page_size < reach; ++page) {  // a division for each position would cost as much as all
      const Number* start = pool + own[page] * rows.page_size * slot_size;
      for (long at = 0; at < std::min(rows.page_size, reach - page * rows.page_size); ++at)
        sight.slots.push_back(start + at * slot_size);
    }
    sight.stride = (reach + kLanes - 1) / kLanes * kLanes + kLanes;
    sight.scores.resize(queries * rows.heads * sight.stride);
    look(out + first * rows.heads * rows.dim, query + first * stride, stride, prefix, queries,
         rows.words ? rows.words + first : nullptr, rows, sight);
  }
}

}  // namespace

// query [queries, heads, dim] of token stride `stride`; pool [slots, 2, kv_heads, dim] of floats or, with `halves`, of
// bf16; words [queries] or null for causal -> out [queries, heads, dim]. The other arrays are those of AttentionInputs.
extern "C" void attended(float* out, const float* query, const void* pool, const int32_t* qo_indptr,
                         const int32_t* kv_indptr, const int32_t* pages, const int64_t* prefixes, const int64_t* words,
                         long rows, long stride, long heads, long kv_heads, long dim, long page_size, bool halves) {
  const Rows all{qo_indptr, kv_indptr, pages, prefixes, words, rows, heads, kv_heads, dim, page_size};
  if (halves)
    attend(out, query, stride, static_cast<const uint16_t*>(pool), all);
  else
    attend(out, query, stride, static_cast<const float*>(pool), all);
}
