// A chunk of each row's prompt in one call, and a second call that extends a head with it. The references in torch are
// engine/step/prefill.py and spec/round/extend_step.py.
#include <algorithm>

#include "head.h"
#include "step.h"
#include "vectors.h"

using namespace aerie;

namespace {

// What the first call leaves for the second: every row's chunk, and the tokens chosen in rows that read their last
// chunk.
struct Chunks {
  std::vector<int64_t> owners, starts, counts;
  Standing rows;
  std::vector<int64_t> chosen;
  std::vector<float> taps, normed_stream, logits;
};

thread_local Chunks chunks_;  // of the current step

void lay(Chunks& chunks, const Step& step, const Prompts& prompts) {
  for (auto* part : {&chunks.owners, &chunks.starts, &chunks.counts, &chunks.rows.owners, &chunks.rows.lengths})
    part->clear();
  chunks.rows.places.clear();
  for (long row = 0; row < step.count; ++row) {
    chunks.owners.push_back(step.rows[row]);
    chunks.starts.push_back(prompts.starts[row]);
    chunks.counts.push_back(prompts.counts[row]);
    if (!prompts.last[row]) continue;
    chunks.rows.places.push_back(row);  // where the prompt's last token is the root that has just run
    chunks.rows.owners.push_back(step.rows[row]);
    chunks.rows.lengths.push_back(prompts.starts[row] + prompts.counts[row] - 1);
  }
}

}  // namespace

extern "C" void prefilled(int32_t* words, const Step* given, const Prompts* prompts) {
  const Step& step = *given;
  const long hidden = step.target->hidden;
  Chunks& chunks = chunks_;
  Answer answer(words, step.count, 1);
  lay(chunks, step, *prompts);
  Pass pass(*step.target, *step.tables);
  pass.lay({chunks.owners.data(), chunks.starts.data(), step.count}, chunks.counts.data());
  const bool lasts = prompts->boundaries == 0 || prompts->tapped[prompts->boundaries - 1] < step.target->count;
  std::vector<long> ends;  // of rows that read their last chunk, in the stream
  for (long row = 0, i = 0; row < step.count; ++row) {
    for (long place = 0; place < chunks.counts[row]; ++place, ++i)
      pass.put(i, row, prompts->tokens[i], chunks.starts[row] + place, chunks.starts[row] + place);
    if (prompts->last[row]) ends.push_back(lasts ? row : i - 1);
    answer.length(row) = static_cast<int32_t>(chunks.starts[row] + chunks.counts[row]);
    answer.ending(row) = static_cast<int32_t>(step.open);
  }
  float* stream = pass.embedded.data();
  chunks.taps.resize(pass.tokens() * prompts->boundaries * hidden);
  pass.run(stream, nullptr, chunks.taps.data(), prompts->tapped, prompts->boundaries, lasts);
  const long count = chunks.rows.count();
  const std::vector<int64_t> ones(count, 1);
  std::vector<int64_t> of(count), next(count);
  for (long row = 0; row < count; ++row) {
    std::copy_n(stream + ends[row] * hidden, hidden, stream + row * hidden);  // forwards: overwrites only used values
    of[row] = row;
    next[row] = chunks.rows.lengths[row] + 1;
  }
  read(chunks.normed_stream, chunks.logits, stream, *step.target, count);
  chunks.rows.choose(chunks.chosen, step, chunks.logits.data(), of, next);
  chunks.rows.hold_roots(chunks.chosen, step, chunks.logits.data(), next);
  chunks.rows.end(step, chunks.chosen.data(), ones.data(), 1, answer);
  for (long row = 0; row < count; ++row) chunks.rows.publish(step, row, chunks.chosen[row], nullptr);
}

// Each pair is a chunk's tap and the token after it; at a prompt's end that is the chosen one. For rows that `extends`
// [count].
extern "C" void prompts_extended(const Step* given, const Prompts* prompts, const Head* head, const bool* extends) {
  const Step& step = *given;
  const Chunks& chunks = chunks_;
  const long hidden = head->body.hidden, wide = head->fuse.inputs;
  std::vector<int64_t> owners, starts, counts;
  for (long row = 0; row < step.count; ++row) {
    if (!extends[row]) continue;
    owners.push_back(chunks.owners[row]);
    starts.push_back(chunks.starts[row]);
    counts.push_back(chunks.counts[row]);
  }
  std::vector<float> taps;
  Pass pass(head->body, *step.tables);
  pass.lay({owners.data(), starts.data(), static_cast<long>(owners.size())}, counts.data());
  for (long row = 0, own = 0, ended = 0, token = 0, i = 0; row < step.count; ++row) {
    const long count = chunks.counts[row];
    if (extends[row]) {
      for (long place = 0; place < count; ++place, ++i) {
        const long after = place + 1 < count ? prompts->tokens[token + place + 1]
                           : prompts->last[row] ? chunks.chosen[ended] : prompts->next[row];
        pass.put(i, own, after, chunks.starts[row] + place, chunks.starts[row] + place);
      }
      const float* from = &chunks.taps[token * wide];
      taps.insert(taps.end(), from, from + count * wide);
      ++own;
    }
    ended += prompts->last[row];
    token += count;
  }
  std::vector<float> stream = fused(taps, *head, pass.tokens());
  pass.run(stream.data(), nullptr, nullptr, nullptr, 0, true);
  for (long row = 0, ended = 0, own = 0; row < step.count; ++row) {
    std::vector<char> seed(step.futures->seed_bytes);
    own += extends[row];
    if (!prompts->last[row]) continue;
    if (extends[row]) pack(seed.data(), &stream[(own - 1) * hidden], hidden, head->body.halves);
    chunks.rows.publish(step, ended, chunks.chosen[ended], seed.data());
    ++ended;
  }
}
