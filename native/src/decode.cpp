// A plain step in one call: one token for each row, and what the next step reads. The reference in torch is
// engine/step/decode.py.
#include <algorithm>

#include "step.h"

using namespace aerie;

namespace {

// A row that rests keeps the tap of its root, and the token after it.
void keep(const Tails& tails, long owner, int64_t position, const float* taps, int64_t token) {
  const long place = owner * tails.size + position % tails.size;
  std::copy_n(taps, tails.wide, tails.taps + place * tails.wide);
  tails.tokens[place] = token;
}

}  // namespace

// `tails` is null if no row rests.
extern "C" void decoded(int32_t* words, const Step* given, const Tails* tails) {
  static thread_local Standing rows;
  static thread_local std::vector<float> normed_stream, logits, taps;
  const Step& step = *given;
  Answer answer(words, step.count, 1);
  rows.open(step, answer);
  const long count = rows.count();
  if (count == 0) return;
  const std::vector<int64_t> ones(count, 1);
  std::vector<int64_t> of(count), next(count), chosen;
  Pass pass(*step.target, *step.tables);
  pass.lay(rows.rows(), ones.data());
  for (long row = 0; row < count; ++row) {
    pass.put(row, row, rows.roots[row], rows.lengths[row], rows.lengths[row]);
    of[row] = row;
    next[row] = rows.lengths[row] + 1;
  }
  if (tails) taps.resize(count * tails->wide);
  pass.run(pass.embedded.data(), nullptr, tails ? taps.data() : nullptr, tails ? tails->tapped : nullptr,
           tails ? tails->boundaries : 0);
  read(normed_stream, logits, pass.embedded.data(), *step.target, count);
  rows.choose(chosen, step, logits.data(), of, next);
  rows.hold_roots(chosen, step, logits.data(), next);
  rows.end(step, chosen.data(), ones.data(), 1, answer);
  for (long row = 0; row < count; ++row) {
    if (tails && tails->resting[rows.places[row]])
      keep(*tails, rows.owners[row], rows.lengths[row], &taps[row * tails->wide], chosen[row]);
    rows.publish(step, row, chosen[row], nullptr);
  }
}
