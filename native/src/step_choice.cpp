// The target's choice in a whole step, of all tokens or of those that a grammar allows. The reference in torch is
// engine/sampling/choose.py.
#include <algorithm>
#include <cmath>

#include "step.h"

namespace aerie {

namespace {

void ban(float* logits, const int64_t* ids, long count) {
  for (long i = 0; i < count; ++i)
    if (ids[i] >= 0) logits[ids[i]] = -INFINITY;
}

template <class Number>
std::vector<Number> picked(const Number* table, const std::vector<int64_t>& rows) {
  std::vector<Number> found;
  for (const int64_t row : rows) found.push_back(table[row]);
  return found;
}

// Leaves what is allowed: bit i of word w is token 32 w + i. `logits` may be `out`.
void mask(float* out, const float* logits, const uint32_t* allowed, long vocabulary) {
  constexpr long bits = 32;
  const auto some = [&](long first, long count, uint32_t word) {
#pragma GCC ivdep
    for (long i = 0; i < count; ++i) out[first + i] = word >> i & 1 ? logits[first + i] : -INFINITY;
  };
  for (long first = 0; first < vocabulary; first += bits) {
    const uint32_t word = allowed[first / bits];
    if (vocabulary - first < bits) some(first, vocabulary - first, word);
    else if (word == 0) std::fill_n(out + first, bits, -INFINITY);
    else some(first, bits, word);
  }
}

bool leaves_something(const float* logits, long vocabulary) {
  return std::any_of(logits, logits + vocabulary, [](float logit) { return logit > -INFINITY; });
}

}  // namespace

void edit(float* logits, const Step& step, const std::vector<int64_t>& rows, const std::vector<int64_t>& positions,
          const std::vector<int64_t>& path) {
  const Tables& tables = *step.tables;
  const Columns& columns = *tables.sampling;
  const long tokens = static_cast<long>(rows.size()), vocabulary = step.target->output.outputs;
  if (step.edits) {
    const long width = static_cast<long>(path.size()) / std::max(tokens, 1L);
    edited(logits, logits, rows.data(), width ? path.data() : nullptr, tables.edit_slots, tables.counts, tables.biases,
           columns.repetition_penalty, columns.frequency_penalty, columns.presence_penalty, tokens, vocabulary, width,
           tables.no_slot);
  }
  for (long i = 0; step.bans && i < tokens; ++i)
    if (positions[i] < tables.min_lengths[rows[i]])
      ban(logits + i * vocabulary, tables.stop_ids + rows[i] * tables.stops, tables.stops);
}

void pick(int64_t* chosen, const float* logits, const Step& step, const std::vector<int64_t>& rows,
          const std::vector<int64_t>& positions) {
  const Columns& columns = *step.tables->sampling;
  const long tokens = static_cast<long>(rows.size()), vocabulary = step.target->output.outputs;
  if (!step.samples) {
    ::chosen(chosen, logits, nullptr, nullptr, tokens, vocabulary, step.greedy_below);
    return;
  }
  const auto temperatures = picked(columns.temperature, rows);
  const auto keys = picked(step.tables->noise_keys, rows);
  std::vector<float> least;
  if (step.filters) {
    const auto min_ps = picked(columns.min_p, rows), top_ps = picked(columns.top_p, rows);
    const auto top_ks = picked(columns.top_k, rows);
    least.resize(tokens);
    edges(least.data(), logits, temperatures.data(), min_ps.data(), top_ks.data(), top_ps.data(), tokens, vocabulary,
          step.greedy_below);
  }
  drawn(chosen, logits, temperatures.data(), step.filters ? least.data() : nullptr, keys.data(), positions.data(),
        tokens, vocabulary, step.greedy_below);
}

}  // namespace aerie

using namespace aerie;

// What the row at `place` of a step chooses at a node of its tree among `allowed`, a bit for each token in words of 32.
// A grammar beats bans: where they leave nothing of what it allows, the raw logits decide. The other parameters are those
// that `Hold` gets.
extern "C" int64_t chosen_among(const Step* given, long place, long node, const uint32_t* allowed, const int64_t* tokens,
                                const int64_t* parents, const float* logits, const int64_t* positions) {
  static thread_local std::vector<float> held;
  const Step& step = *given;
  const long vocabulary = step.target->output.outputs;
  const float* raw = logits + node * vocabulary;
  const std::vector<int64_t> rows{step.rows[place]}, own_positions{positions[node]};
  std::vector<int64_t> path;
  for (long above = node; step.edits && above; above = parents[above]) path.push_back(tokens[above]);
  held.resize(vocabulary);
  const bool edited = step.edits || step.bans;
  if (edited) {
    std::copy_n(raw, vocabulary, held.data());
    edit(held.data(), step, rows, own_positions, path);
  }
  mask(held.data(), edited ? held.data() : raw, allowed, vocabulary);
  if (edited && !leaves_something(held.data(), vocabulary)) mask(held.data(), raw, allowed, vocabulary);
  int64_t token;
  pick(&token, held.data(), step, rows, own_positions);
  return token;
}
