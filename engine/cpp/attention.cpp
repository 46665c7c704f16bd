// Attention of few queries over paged keys and values: every query looks at its row's prefix and at the nodes that its
// ancestor word names. Each is computed by itself, so its result does not depend on what else is in the batch.
#include <cmath>
#include <utility>
#include <vector>

#include "vectors.h"

using namespace aerie;

namespace {

constexpr int kMostParts = 16;  // vectors of a head: 256 numbers
constexpr long kAhead = 8;      // slots that are fetched ahead of what is read

// One head of one query over the keys and values at `slots`; a head's key lies `offset` after its slot, and its value
// `to_value` after its key.
template <int Parts>
void look(float* out, const float* query, const std::vector<const float*>& slots, long offset, long to_value,
          std::vector<float>& scores) {
  const long count = static_cast<long>(slots.size());
  const float scale = 1.0f / std::sqrt(static_cast<float>(Parts * kLanes));
  Floats asked[Parts];
  for (int part = 0; part < Parts; ++part) asked[part] = load(query + part * kLanes) * scale;
  const auto at = [&](long i, long after) {  // and what comes soon, which no prefetcher can guess
    const float* coming = slots[i + kAhead < count ? i + kAhead : i] + after;
#pragma GCC unroll 16
    for (int part = 0; part < Parts; ++part) __builtin_prefetch(coming + part * kLanes);
    return slots[i] + after;
  };
  const auto score = [&](long i) {
    const float* key = at(i, offset);
    Floats products = asked[0] * load(key);
#pragma GCC unroll 16
    for (int part = 1; part < Parts; ++part) products += asked[part] * load(key + part * kLanes);
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
    const float* value = at(i, offset + to_value);
#pragma GCC unroll 16
    for (int part = 0; part < Parts; ++part) mixed[part] += load(value + part * kLanes) * scores[i];
  }
  const float share = 1.0f / sum(total);
  for (int part = 0; part < Parts; ++part) store(out + part * kLanes, mixed[part] * share);
}

using Look = void (*)(float*, const float*, const std::vector<const float*>&, long, long, std::vector<float>&);

template <int... Parts>
constexpr Look of_parts(long parts, std::integer_sequence<int, Parts...>) {
  constexpr Look all[] = {look<Parts + 1>...};
  return all[parts - 1];
}

}  // namespace

// query [queries, heads, dim] of token stride `stride`; pool [slots, 2, kv_heads, dim]; words [queries] or null for
// causal -> out [queries, heads, dim]. The other arrays are those of AttentionInputs.
extern "C" void attended(float* out, const float* query, const float* pool, const int32_t* qo_indptr,
                         const int32_t* kv_indptr, const int32_t* pages, const int64_t* prefixes, const int64_t* words,
                         long rows, long stride, long heads, long kv_heads, long dim, long page_size) {
  const long group = heads / kv_heads, to_value = kv_heads * dim, slot_size = 2 * to_value;
  const Look look = of_parts(dim / kLanes, std::make_integer_sequence<int, kMostParts>());
  static thread_local std::vector<const float*> slots;
  static thread_local std::vector<float> scores;
  for (long row = 0; row < rows; ++row) {
    const int32_t* own = pages + kv_indptr[row];
    const auto slot = [&](long position) {
      return pool + (own[position / page_size] * page_size + position % page_size) * slot_size;
    };
    // What is planned covers every position, except of rows that are done: they may look where they have no page.
    const long covered = (kv_indptr[row + 1] - kv_indptr[row]) * page_size, first = qo_indptr[row];
    const long prefix = prefixes[row] < covered ? prefixes[row] : covered;
    slots.clear();
    for (long position = 0; position < prefix; ++position) slots.push_back(slot(position));
    for (long node = first; node < qo_indptr[row + 1]; ++node) {
      slots.resize(prefix);
      if (words == nullptr) {
        for (long position = prefix; position <= prefix + node - first && position < covered; ++position)
          slots.push_back(slot(position));
      } else {
        for (uint64_t word = static_cast<uint64_t>(words[node]); word; word &= word - 1) {
          const long position = prefix + __builtin_ctzll(word);
          if (position < covered) slots.push_back(slot(position));
        }
      }
      for (long head = 0; head < heads; ++head)
        look(out + (node * heads + head) * dim, query + node * stride + head * dim, slots, head / group * dim, to_value,
             scores);
    }
  }
}
