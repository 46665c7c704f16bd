#include "step.h"

#include <algorithm>
#include <cstring>

namespace aerie {

namespace {

long generation(const Step& step, long row, bool next) {
  const long generation = step.generations[row];
  return (next ? 1 - generation : generation) * step.futures->per_generation + step.rows[row];
}

void leave(const Futures& futures, long place, int64_t token, int64_t length, bool done, const char* seed) {
  futures.tokens[place] = token;
  futures.lengths[place] = length;
  futures.done[place] = done;
  if (seed) std::memcpy(futures.seeds + place * futures.seed_bytes, seed, futures.seed_bytes);
}

bool allows(const uint32_t* mask, int64_t token) { return mask[token / 32] >> token % 32 & 1; }

// Whether a mask changes what the row chooses even if it allows the choice.
bool filtered(const Step& step, long row) {
  const Columns& columns = *step.tables->sampling;
  return columns.temperature[row] >= step.greedy_below &&
         (columns.top_k[row] != 0 || columns.top_p[row] != 1 || columns.min_p[row] != 0);
}

}  // namespace

void Standing::open(const Step& step, Answer answer) {
  const Futures& futures = *step.futures;
  places.clear(), owners.clear(), lengths.clear(), roots.clear();
  for (long row = 0; row < step.count; ++row) {
    const long place = generation(step, row, false);
    const int64_t token = futures.tokens[place], length = futures.lengths[place];
    if (futures.done[place]) {
      answer.length(row) = static_cast<int32_t>(length);
      answer.ending(row) = static_cast<int32_t>(step.open);
      leave(futures, generation(step, row, true), token, length, true, futures.seeds + place * futures.seed_bytes);
      continue;
    }
    places.push_back(row);
    owners.push_back(step.rows[row]);
    lengths.push_back(length);
    roots.push_back(token);
  }
}

const char* Standing::seed(const Step& step, long row) const {
  return step.futures->seeds + generation(step, places[row], false) * step.futures->seed_bytes;
}

void Standing::choose(std::vector<int64_t>& chosen, const Step& step, float* logits, const std::vector<int64_t>& of,
                      const std::vector<int64_t>& positions, const std::vector<int64_t>& path) const {
  const long tokens = static_cast<long>(of.size()), vocabulary = step.target->output.outputs;
  chosen.resize(tokens);
  static thread_local std::vector<float> copied;
  if (step.hold && (step.edits || step.bans)) {  // who holds the choices to grammars begins at the raw logits again
    copied.assign(logits, logits + tokens * vocabulary);
    logits = copied.data();
  }
  std::vector<int64_t> rows(tokens);
  for (long i = 0; i < tokens; ++i) rows[i] = owners[of[i]];
  edit(logits, step, rows, positions, path);
  pick(chosen.data(), logits, step, rows, positions);
}

bool Standing::held(const Step& step, long row) const {
  return step.hold && __atomic_load_n(&step.board->among[owners[row]], __ATOMIC_ACQUIRE) != kAll;
}

void Standing::hold_roots(std::vector<int64_t>& chosen, const Step& step, const float* logits,
                          const std::vector<int64_t>& positions) const {
  for (long row = 0; step.hold && row < count(); ++row, logits += step.target->output.outputs) {
    const Board& board = *step.board;
    const int32_t among = __atomic_load_n(&board.among[owners[row]], __ATOMIC_ACQUIRE);
    if (among == kAwaited) step.hold(&step, places[row], 1, nullptr, nullptr, &chosen[row], logits, &positions[row]);
    if (among != kMask) continue;
    const uint32_t* mask = board.masks + owners[row] * board.words;
    if (filtered(step, owners[row]) || !allows(mask, chosen[row]))
      chosen[row] = chosen_among(&step, places[row], 0, mask, nullptr, nullptr, logits, &positions[row]);
  }
}

void Standing::end(const Step& step, const int64_t* tokens, const int64_t* counts, long width, Answer answer) {
  const Tables& tables = *step.tables;
  std::vector<int64_t> known(lengths);
  for (int64_t& length : known) ++length;  // the root is known but has not run yet
  const std::vector<char> done(count());
  kept.resize(count());
  endings.resize(count());
  cut(kept.data(), endings.data(), tokens, counts, known.data(), reinterpret_cast<const bool*>(done.data()), owners.data(),
      tables.limits, tables.stop_ids, count(), width, tables.stops, step.open, step.stop, step.full);
  for (long row = 0; row < count(); ++row) {
    const long place = places[row];
    std::copy_n(tokens + row * width, width, answer.tokens(place));
    answer.kept(place) = static_cast<int32_t>(kept[row]);
    answer.length(place) = static_cast<int32_t>(lengths[row] + kept[row]);
    answer.ending(place) = static_cast<int32_t>(endings[row]);
  }
  for (long row = 0; step.edits && row < count(); ++row) {
    const int64_t slot = tables.edit_slots[owners[row]];
    if (slot == tables.no_slot) continue;
    int32_t* own = tables.counts + slot * step.target->output.outputs;
    for (long i = 0; i < kept[row]; ++i) ++own[tokens[row * width + i]];
  }
}

void Standing::publish(const Step& step, long row, int64_t token, const char* seed) const {
  leave(*step.futures, generation(step, places[row], true), token, lengths[row] + kept[row], endings[row] != step.open,
        seed);
}

}  // namespace aerie

using namespace aerie;

// Puts a mask [words] where the step finds it: first the mask, then the word of it. The step may run meanwhile.
extern "C" void mask_put(int32_t* among, uint32_t* masks, const void* mask, long row, long words) {
  std::memcpy(masks + row * words, mask, words * sizeof *masks);
  __atomic_store_n(&among[row], kMask, __ATOMIC_RELEASE);
}
