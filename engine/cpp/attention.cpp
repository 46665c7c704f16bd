// Attention of few queries over paged keys and values: every query looks at its row's prefix and at the nodes that its
// ancestor word names. Each is computed by itself, so its result does not depend on what else is in the batch.
#include <cmath>
#include <vector>

#include "vectors.h"

using namespace aerie;

namespace {

constexpr long kAhead = 8;      // slots that are fetched ahead of what is read

// One head of one query over the keys and values at `slots`; a head's key lies `offset` after its slot, and its value
// `to_value` after its key.
template <class Number, int Parts>
void look(float* out, const float* query, const std::vector<const Number*>& slots, long offset, long to_value,
          std::vector<float>& scores) {
  const long count = static_cast<long>(slots.size());
  const float scale = 1.0f / std::sqrt(static_cast<float>(Parts * kLanes));
  Floats asked[Parts];
  for (int part = 0; part < Parts; ++part) asked[part] = load(query + part * kLanes) * scale;
  const auto at = [&](long i, long after) {  // and what comes soon, which no prefetcher can guess
    const Number* coming = slots[i + kAhead < count ? i + kAhead : i] + after;
#pragma GCC unroll 16
    for (int part = 0; part < Parts; ++part) __builtin_prefetch(coming + part * kLanes);
    return slots[i] + after;
  };
  const auto score = [&](long i) {
    const Number* key = at(i, offset);
    Floats products = asked[0] * floats(key);
#pragma GCC unroll 16
    for (int part = 1; part < Parts; ++part) products += asked[part] * floats(key + part * kLanes);
    return sum(products);
  };
  scores.resize((count + kLanes - 1) / kLanes * kLanes);
  float most = -INFINITY;
  for (long i = 0; i < count; ++i) {
    scores[i] = score(i);
    most = scores[i] > most ? scores[i] : most;
  }
  for (size_t i = count; i < scores.size(); ++i) scores[i] = -INFINITY;
  Floats total{};
  for (long i = 0; i < count; i += kLanes) {
    const Floats weights = exp(load(&scores[i]) - most);
    store(&scores[i], weights);
    total += weights;
  }
  Floats mixed[Parts] = {};
  for (long i = 0; i < count; ++i) {
    const Number* value = at(i, offset + to_value);
#pragma GCC unroll 16
    for (int part = 0; part < Parts; ++part) mixed[part] += floats(value + part * kLanes) * scores[i];
  }
  const float share = 1.0f / sum(total);
  for (int part = 0; part < Parts; ++part) store(out + part * kLanes, mixed[part] * share);
}

template <class Number>
using Look = void (*)(float*, const float*, const std::vector<const Number*>&, long, long, std::vector<float>&);

// Heads of up to 128 numbers, and of 256.
template <class Number>
Look<Number> of_parts(long parts) {
  constexpr Look<Number> all[] = {look<Number, 1>, look<Number, 2>, look<Number, 3>, look<Number, 4>,
                                  look<Number, 5>, look<Number, 6>, look<Number, 7>, look<Number, 8>};
  return parts == 16 ? look<Number, 16> : all[parts - 1];
}

struct Rows {
  const int32_t *qo_indptr, *kv_indptr, *pages;
  const int64_t *prefixes, *words;
  long count, heads, kv_heads, dim, page_size;
};

// query [queries, heads, dim] of token stride `stride`.
template <class Number>
void attend(float* out, const float* query, long stride, const Number* pool, const Rows& rows) {
  const long group = rows.heads / rows.kv_heads, dim = rows.dim, page_size = rows.page_size;
  const long to_value = rows.kv_heads * dim, slot_size = 2 * to_value;
  const Look<Number> look = of_parts<Number>(dim / kLanes);
  static thread_local std::vector<const Number*> slots;
  static thread_local std::vector<float> scores;
  for (long row = 0; row < rows.count; ++row) {
    const int32_t* own = rows.pages + rows.kv_indptr[row];
    const auto slot = [&](long position) {
      return pool + (own[position / page_size] * page_size + position % page_size) * slot_size;
    };
    // What is planned covers every position, except of rows that are done: they may look where they have no page.
    const long covered = (rows.kv_indptr[row + 1] - rows.kv_indptr[row]) * page_size, first = rows.qo_indptr[row];
    const long prefix = rows.prefixes[row] < covered ? rows.prefixes[row] : covered;
    slots.clear();
    for (long position = 0; position < prefix; ++position) slots.push_back(slot(position));
    for (long node = first; node < rows.qo_indptr[row + 1]; ++node) {
      slots.resize(prefix);
      if (rows.words == nullptr) {
        for (long position = prefix; position <= prefix + node - first && position < covered; ++position)
          slots.push_back(slot(position));
      } else {
        for (uint64_t word = static_cast<uint64_t>(rows.words[node]); word; word &= word - 1) {
          const long position = prefix + __builtin_ctzll(word);
          if (position < covered) slots.push_back(slot(position));
        }
      }
      for (long head = 0; head < rows.heads; ++head)
        look(out + (node * rows.heads + head) * dim, query + node * stride + head * dim, slots, head / group * dim,
             to_value, scores);
    }
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
